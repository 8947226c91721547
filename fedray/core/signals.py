"""An interruption from outside, told from code that raises one itself."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalsNoted:
    """Notes signals while it is entered; the handlers in force still answer them.

    A step that raises `KeyboardInterrupt` or `SystemExit` without one has failed; with one, the run
    is to end. Handlers that a step sets are gone afterwards.

    Attributes:
        arrived: whether there was one.
    """

    def __init__(self) -> None:
        self.arrived = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
        self._handlers[signal.Signals(number)](number, frame)
