"""The diagrams: well-formed pictures for light and dark pages, whose labels fit between the lines."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tools.diagrams import DIAGRAMS, Diagram, Message, Note, svg


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=list(DIAGRAMS))
def test_each_event_is_in_the_picture(diagram: Diagram) -> None:
    picture = svg(diagram)
    texts = {element.text for element in ElementTree.fromstring(picture).iter() if element.text}
    assert {diagram.title, *diagram.participants, *(event.text for event in diagram.events)} <= texts
    assert "@media (prefers-color-scheme: dark)" in picture


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=list(DIAGRAMS))
def test_a_label_is_no_longer_than_its_arrow(diagram: Diagram) -> None:
    place = {name: number * 190 for number, name in enumerate(diagram.participants)}
    for event in diagram.events:
        if isinstance(event, Message):
            assert len(event.text) * 6.6 < abs(place[event.source] - place[event.target]), event.text


def test_an_unknown_participant_and_markup_are_noticed() -> None:
    with pytest.raises(KeyError):
        svg(Diagram("a", ("one",), (Note("two", "text"),)))
    assert "&lt;b&gt;" in svg(Diagram("a", ("one",), (Note("one", "<b>"),)))
