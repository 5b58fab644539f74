from __future__ import annotations

import itertools

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.protocol.label import LABEL, LabelPrefix, epoch_of, labels


def test_labels_are_valid_and_never_the_same() -> None:
    all_labels = [
        label
        for lane, batch, attempt in itertools.product(range(3), range(3), range(3))
        for label in itertools.islice(labels("job-a", "e1", lane, batch, attempt), 4)
    ]
    assert len(set(all_labels)) == len(all_labels)
    assert all(LABEL.match(label) for label in all_labels)


def test_a_prefix_holds_its_labels_and_no_others() -> None:
    label = next(labels("orders-eu", "e1", 2, 30, 4))
    assert epoch_of(label) == "e1"
    for prefix in (LabelPrefix("orders-eu"), LabelPrefix("orders-eu", "e1")):
        assert label.startswith(prefix.text)
        assert prefix.matches(label)
    for prefix in (LabelPrefix("orders"), LabelPrefix("orders-eu", "e2"), LabelPrefix("eu")):
        assert not prefix.matches(label)
    assert not LabelPrefix("orders").matches("orders-by-hand")
    assert epoch_of("orders-by-hand") == ""


@pytest.mark.parametrize("job", ["x" * 128, "ünï", "a b"])
def test_names_that_make_no_label_are_refused(job: str) -> None:
    with pytest.raises(OptionError, match="not allowed"):
        next(labels(job, "e", 0, 0, 0))
