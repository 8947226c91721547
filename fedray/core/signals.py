"""An interruption from outside, told from code that raises one itself."""

from __future__ import annotations

import dis
import signal
from traceback import walk_tb


def came_from_outside(error: BaseException) -> bool:
    """Whether the handler of a signal raised this, and not the code that was running.

    A step that raises `KeyboardInterrupt`, or calls `sys.exit`, has failed; when somebody stops the
    run, it is to end.
    """
    if isinstance(error, Exception) or error.__traceback__ is None:
        return False
    frames = list(walk_tb(error.__traceback__))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    if any(frame.f_code in codes for frame, _ in frames):
        return True
    if signal.default_int_handler not in handlers or not isinstance(error, KeyboardInterrupt):
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    operation = last.tb_frame.f_code.co_code[last.tb_lasti]
    return dis.opname[operation] != "RAISE_VARARGS"  # Python's own handler leaves no frame
