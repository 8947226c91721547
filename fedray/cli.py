"""What the commands have in common: errors as one sentence with an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

from fedray.errors import FedrayError, UserError

P = ParamSpec("P")

USER_ERROR = 2
RUN_ERROR = 1
INTERRUPTED = 130


def guard(main: Callable[P, int]) -> Callable[P, int]:
    """Turn what fedray raises into one sentence on stderr and an exit code.

    2 for what the user can mend, 1 for a run that failed, 130 after Ctrl-C.
    """

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return USER_ERROR
        except FedrayError as error:
            print(f"failed: {error}", file=sys.stderr)
            return RUN_ERROR
        except KeyboardInterrupt:
            print("interrupted; the last checkpoint is intact", file=sys.stderr)
            return INTERRUPTED

    return guarded
