"""The diagrams of the documentation, as SVG: a micro-batch's life and a take-over, each a sequence of messages.

One picture serves light and dark pages: its colours follow `prefers-color-scheme`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_LEFT, _TOP, _GAP, _STEP = 90, 28, 190, 36
_BOX_WIDTH, _BOX_HEIGHT = 150, 34

_STYLE: Final = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.who { font-weight: 600; text-anchor: middle; }
.middle { text-anchor: middle; }
.label, .note { stroke: #ffffff; stroke-width: 5px; paint-order: stroke; }
.note { fill: #57606a; font-style: italic; text-anchor: middle; }
rect { fill: #eaf2fb; stroke: #3b6ea5; }
.life { stroke: #b6bec8; stroke-dasharray: 3 4; }
.go { stroke: #3b6ea5; stroke-width: 1.6; fill: none; }
.bad { stroke: #b3261e; }
marker path { fill: #3b6ea5; }
#bad path { fill: #b3261e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .label, .note { stroke: #0d1117; }
  .note { fill: #9da7b3; }
  rect { fill: #16263a; stroke: #6ea8e0; }
  .life { stroke: #4b5563; }
  .go { stroke: #6ea8e0; }
  .bad { stroke: #ff8a80; }
  marker path { fill: #6ea8e0; }
  #bad path { fill: #ff8a80; }
}
"""


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow from one participant to another; a `refused` one is red."""

    source: str
    target: str
    text: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A remark at a participant's line."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """Participants from left to right, and what happens from top to bottom; `title` is for readers without pictures."""

    title: str
    participants: Sequence[str]
    events: Sequence[Message | Note]


MICRO_BATCH = Diagram(
    "The life of a micro-batch: one StarRocks transaction over all lanes",
    ("source", "driver", "lanes", "StarRocks", "readers"),
    (
        Message("driver", "source", "which rows are new?"),
        Message("driver", "lanes", "one task a lane"),
        Message("source", "lanes", "rows of whole transactions"),
        Message("lanes", "StarRocks", "1  the first one begins"),
        Message("lanes", "StarRocks", "2  load orders"),
        Message("lanes", "StarRocks", "2  load order_items"),
        Message("lanes", "driver", "all rows are loaded"),
        Message("driver", "StarRocks", "3  load the ledger's positions"),
        Message("driver", "StarRocks", "4  check: am I still the owner?"),
        Message("driver", "StarRocks", "5  commit"),
        Message("driver", "StarRocks", "5  confirm, until VISIBLE"),
        Message("StarRocks", "readers", "all tables at once"),
        Note("driver", "only now Spark's checkpoint moves on"),
    ),
)

TAKE_OVER = Diagram(
    "A new driver takes a job over from one that sleeps",
    ("old driver", "StarRocks", "new driver"),
    (
        Message("old driver", "StarRocks", "begin L1, load"),
        Note("old driver", "sleeps"),
        Message("new driver", "StarRocks", "1  claim: I own the job"),
        Message("new driver", "StarRocks", "2  list, roll L1 back"),
        Message("new driver", "StarRocks", "3  barrier: a visible marker"),
        Message("StarRocks", "new driver", "4  read: owner, positions"),
        Message("new driver", "StarRocks", "begin L2, load the rest"),
        Message("new driver", "StarRocks", "commit L2"),
        Note("old driver", "wakes up"),
        Message("old driver", "StarRocks", "check the owner"),
        Message("StarRocks", "old driver", "not you: Fenced", refused=True),
    ),
)


def svg(diagram: Diagram) -> str:
    """The picture's file."""
    place = {name: _LEFT + number * _GAP for number, name in enumerate(diagram.participants)}
    width = 2 * _LEFT + (len(place) - 1) * _GAP
    height = _TOP + _BOX_HEIGHT + (len(diagram.events) + 1) * _STEP
    title = escape(diagram.title)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>\n{_STYLE}</style>",
        f"<defs>{_head('go')}{_head('bad')}</defs>",
    ]
    for name, x in place.items():
        lines.append(f'<line class="life" x1="{x}" y1="{_TOP + _BOX_HEIGHT}" x2="{x}" y2="{height - 8}"/>')
        lines.append(
            f'<rect x="{x - _BOX_WIDTH // 2}" y="{_TOP - 14}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
        )
        lines.append(f'<text class="who" x="{x}" y="{_TOP + 8}">{escape(name)}</text>')
    for number, event in enumerate(diagram.events, 1):
        lines += _event(event, place, _TOP + _BOX_HEIGHT + number * _STEP)
    return "\n".join([*lines, "</svg>", ""])


def _head(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 10 5 0 10z"/></marker>'
    )


def _event(event: Message | Note, place: dict[str, int], y: int) -> list[str]:
    if isinstance(event, Note):
        return [f'<text class="note" x="{place[event.at]}" y="{y}">{escape(event.text)}</text>']
    start, end = place[event.source], place[event.target]
    kind, head = ("go bad", "bad") if event.refused else ("go", "go")
    tip = end - 4 if end > start else end + 4
    middle = (start + end) // 2
    return [  # the arrow is drawn over the label's halo
        f'<text class="label middle" x="{middle}" y="{y - 7}">{escape(event.text)}</text>',
        f'<line class="{kind}" x1="{start}" y1="{y}" x2="{tip}" y2="{y}" marker-end="url(#{head})"/>',
    ]


DIAGRAMS = {"docs/images/micro-batch.svg": MICRO_BATCH, "docs/images/take-over.svg": TAKE_OVER}
"""Each diagram by the path of its file."""
