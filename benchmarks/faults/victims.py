"""Commands in forked processes, which share the imports and start in milliseconds, and may die."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

LIMIT_SECONDS = 900.0
"""After so long without an end a process hangs; far more than any takes on a loaded machine."""

_IMPORTED = (
    "matplotlib.pyplot",
    "open_clip",
    "sklearn.datasets",
    "torch",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "fedray.cli.run",
    "fedray.runtime.resolve",
    "fedray.runtime.serial",
    "fedray.runtime.session",
)


@dataclass(frozen=True)
class End:
    """How a process ended.

    Attributes:
        code: its exit code; -9 when it was killed; None when it hung until `LIMIT_SECONDS`.
        output: what it wrote.
        errors: what it wrote to stderr.
    """

    code: int | None
    output: str
    errors: str

    @property
    def was_killed(self) -> bool:
        """Whether a SIGKILL ended it."""
        return self.code == -signal.SIGKILL

    @property
    def fault(self) -> str:
        """What is wrong with the way it ended, or "": 0 in silence, or 1 or 2 with one sentence."""
        if self.code is None:
            return f"no end within {LIMIT_SECONDS:g} s"
        if "Traceback" in self.errors:
            return f"a traceback: {self.errors}"
        said = self.errors.strip().splitlines()
        if self.code in (1, 2) and len(said) != 1:
            return f"exit code {self.code} with {len(said)} lines: {self.errors}"
        return "" if self.code in (0, 1, 2) else f"exit code {self.code}: {self.errors}"


class Victim:
    """A forked process that runs a function.

    Args:
        work: runs there; returns the exit code.
        log: its stdout goes to this file, its stderr to the one beside it.
    """

    def __init__(self, work: Callable[[], int], log: Path) -> None:
        self._log = log
        self._ended: End | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(work, log)

    def kill(self) -> None:
        """End it, wherever it is."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = LIMIT_SECONDS) -> End | None:
        """Its end; None when there is none within `seconds`."""
        until = time.monotonic() + seconds
        while self._ended is None and time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = self._end(os.waitstatus_to_exitcode(status))
            else:
                time.sleep(0.002)
        return self._ended

    def end(self) -> End:
        """Its end; a process that hangs is killed."""
        end = self.wait()
        if end is None:
            self.kill()
            os.waitpid(self.pid, 0)
            end = self._ended = self._end(None)
        return end

    def end_or_kill(self, seconds: float) -> End:
        """Its end, after a SIGKILL if it has not come within `seconds`."""
        end = self.wait(seconds)
        if end is None:
            self.kill()
            end = self.end()
        return end

    def _end(self, code: int | None) -> End:
        output, errors = (
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            for path in (self._log, _errors(self._log))
        )
        return End(code, output, errors)


def _errors(log: Path) -> Path:
    return log.with_suffix(".err")


def _become(work: Callable[[], int], log: Path) -> NoReturn:
    """Run the function in this process, which is the fork, and end it."""
    code = 70
    try:
        for stream, path in ((1, log), (2, _errors(log))):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(descriptor, stream)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def import_all(*more: str) -> None:
    """Import in this process what the forked ones need, without computing anything."""
    os.environ["MPLBACKEND"] = "Agg"
    for module in (*_IMPORTED, *more):
        import_module(module)


def run_command(words: Sequence[str]) -> Callable[[], int]:
    """`python -m fedray.run` with these words, as a victim's work."""

    def work() -> int:
        from fedray.cli import run

        return run.main([*words])

    return work
