"""Ctrl-C and SIGTERM end the demo in order: one exception, one clean-up, no second signal in between."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the demo to end. `exit_code` is the shell's: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Turns the first signal into Interrupted; those that follow are ignored, because cleaning up is bounded."""

    def __init__(self) -> None:
        self._held = False
        self._pending: int | None = None

    def install(self) -> None:
        """Take the signals over; again, after a library took them for itself."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """A signal inside takes effect at the end, when what was being started can be ended properly."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.install()
        if self._pending is not None:
            self._raise(self._pending)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._held:
            self._pending = number
        else:
            self._raise(number)

    def _raise(self, number: int) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)


@contextlib.contextmanager
def interruption() -> Iterator[Interruption]:
    """Signals raise Interrupted inside the block (main thread only); afterwards they do what they did before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = Interruption()
    taken.install()
    try:
        yield taken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
