"""Which lane begins a label: the first one that has rows to load, and no other one.

The server counts a label's `timeout` from its begin, so nobody begins it before there are rows. The driver *opens* the
label for its lanes, without a request to the server. A lane asks here before its first load. One lane is told to begin
the label, the others wait, and hear its age once it is begun. Two begins would be two unknown outcomes; so if the lane
that was told goes away without a word, the label is given up: nobody else begins it, and the driver takes another one.

Each lane also *enters* the label with its first input, rows to load or not. Only one try at a lane may, whenever the
second one comes. A claim at the server (`writer.lane_try`) would be there before the label, and may be forgotten first.

`Openings` is the book; `LaneQuestion` and `Answer` are what lanes say and hear, `protocol.turns.Turns` the way to it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum


class Topic(Enum):
    """What a lane wants to know, or says."""

    ENTER = "enter"  # may this try at the lane work under the label, and how old is it?
    BEGIN = "begin"  # there are rows to load: who begins the label?
    BEGUN = "begun"  # the server has begun it


@dataclass(frozen=True, slots=True)
class LaneQuestion:
    """A question about `label` of the try with this number (`attempt`) at a lane; an Answer, or None without one."""

    topic: Topic
    label: str
    lane: int = 0
    attempt: int = 0


class Word(Enum):
    """The answer to a lane's question."""

    OPEN = "open"  # not begun yet
    BEGIN = "begin"  # begin it at the server, and say so
    BEGUN = "begun"
    TAKEN = "taken"  # another try at this lane has entered
    GONE = "gone"  # given up, or settled: nothing of it is committed any more


@dataclass(frozen=True, slots=True)
class Answer:
    """`age` is that of a label that is begun, in seconds."""

    word: Word
    age: float = 0.0


GONE = Answer(Word.GONE)
Answers = list[tuple[Hashable, Answer]]
"""Who gets an answer now: who asks, or others who wait for the label's begin."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A label that is open no more; `told`: a lane may have begun it, `age` seconds ago, if that is known."""

    told: bool
    age: float | None
    answers: Answers


@dataclass(slots=True)
class _Opening:
    tries: dict[int, int] = field(default_factory=dict)  # the number of the try that has entered, by lane
    told_at: float | None = None
    teller: Hashable | None = None  # who was told to begin it, until it has said so
    given_up: bool = False
    waiting: list[Hashable] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return self.told_at is not None and self.teller is None and not self.given_up

    def answer(self, now: float) -> Answer:
        """What who asks for the label's age hears; it counts from when a lane was told to begin it."""
        if self.given_up:
            return GONE
        return Answer(Word.BEGUN, now - (self.told_at or 0.0)) if self.begun else Answer(Word.OPEN)


class Openings:
    """The labels that are open, and who begins them; `now` is in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, _Opening] = {}

    def open(self, label: str) -> None:
        """From now on lanes may enter and begin `label`, which nobody has opened before."""
        self._open[label] = _Opening()

    def close(self, label: str, now: float) -> Closed:
        """All lanes have ended, or count no more: who asks for `label` from now on hears that it is gone."""
        opening = self._open.pop(label)
        age = now - opening.told_at if opening.begun and opening.told_at is not None else None
        return Closed(opening.told_at is not None, age, [(waits, GONE) for waits in opening.waiting])

    def answer(self, question: LaneQuestion, holder: Hashable, now: float) -> Answers:
        """The answers that `question` of `holder` leads to; none for `holder` as long as another one begins the label.

        A holder asks one question at a time.
        """
        opening = self._open.get(question.label)
        if opening is None:
            return [(holder, GONE)]
        match question.topic:
            case Topic.ENTER:
                entered = opening.tries.setdefault(question.lane, question.attempt)
                return [(holder, opening.answer(now) if entered == question.attempt else Answer(Word.TAKEN))]
            case Topic.BEGIN:
                return self._who_begins(opening, holder, now)
            case Topic.BEGUN:
                if opening.teller is not holder:
                    return [(holder, GONE)]
                opening.teller = None
                answered, opening.waiting = [holder, *opening.waiting], []
                return [(waits, opening.answer(now)) for waits in answered]

    def leave(self, holder: Hashable) -> Answers:
        """`holder` asks no more: a label that it was told to begin, and has not, is given up."""
        answers: Answers = []
        for opening in self._open.values():
            opening.waiting = [waits for waits in opening.waiting if waits is not holder]
            if opening.teller is holder:
                opening.teller, opening.given_up = None, True
                answers += [(waits, GONE) for waits in opening.waiting]
                opening.waiting = []
        return answers

    @staticmethod
    def _who_begins(opening: _Opening, holder: Hashable, now: float) -> Answers:
        if opening.told_at is None:
            opening.told_at, opening.teller = now, holder
            return [(holder, Answer(Word.BEGIN))]
        if opening.teller is not None:
            opening.waiting.append(holder)
            return []
        return [(holder, opening.answer(now))]
