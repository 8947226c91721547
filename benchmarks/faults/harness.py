"""Runs in forked processes that may die, their verdicts, and the tally of outcomes.

Forked processes share the imports of this one, so that they start in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.faults.experiments import METHODS, write_experiments
from fedray.base.errors import UserError
from fedray.base.trees import leaves
from fedray.storage.run import MEASURED_SECONDS, Run
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore

SERIAL = ("--executor", "serial", "--no-track")
LIMIT_SECONDS = 900.0
"""A process that has not ended by then hangs: no run here needs as long on a busy machine."""

_IMPORTED = (
    *("matplotlib.pyplot", "open_clip", "sklearn.datasets", "torch"),
    *(f"transformers.models.bert.{name}_bert" for name in ("modeling", "tokenization")),
    *("fedray.cli.run", "fedray.runtime.resolve", "fedray.runtime.session"),
    "fedray.runtime.serial",
)
_FILES = {
    *(".lock", ".trial.lock", "states", "run.json", "rounds.jsonl", "error.txt", "matrices.json"),
    "tracking.json",
}
"""The files that a finished run may leave."""


@dataclass
class Tally:
    """Outcomes by kind of fault.

    Attributes:
        outcomes: number of faults by (fault, outcome).
        wrong: one sentence for each fault that ended in a traceback, a hang or another number.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of faults."""
        return sum(self.outcomes.values())

    def add(self, faults: Iterable[str], outcome: str, wrong: str = "") -> None:
        """Count faults of one run with their outcome; if `wrong` is not empty, blame the first."""
        for fault in faults:
            self.outcomes[fault, "WRONG" if wrong else outcome] += 1
            if wrong:
                self.wrong.append(f"{fault}: {wrong}")
                wrong = ""

    def print_progress(self) -> None:
        """Print how many faults there are so far."""
        print(f"  {self.count} faults so far, {len(self.wrong)} wrong", flush=True)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.outcomes + other.outcomes, self.wrong + other.wrong)

    def table(self) -> str:
        """Return a Markdown table of outcomes, followed by the wrong ones."""
        rows = [f"| {fault} | {how} | {n} |" for (fault, how), n in sorted(self.outcomes.items())]
        lines = ["| fault | outcome | times |", "|---|---|---:|", *rows, ""]
        lines.append(f"{self.count} faults, {len(self.wrong)} wrong")
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.wrong)])


# --- forked processes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a process ended.

    Attributes:
        code: its exit code; -9 if it was killed; None if it hung until `LIMIT_SECONDS`.
        errors: its standard error.
    """

    code: int | None
    errors: str

    @property
    def was_killed(self) -> bool:
        """Whether a SIGKILL ended it."""
        return self.code == -signal.SIGKILL

    @property
    def fault(self) -> str:
        """The defect of this end: it may be 0, or 1 or 2 with one sentence; "" for no defect."""
        if self.code is None:
            return f"no end within {LIMIT_SECONDS:g} s"
        if "Traceback" in self.errors:
            return f"a traceback: {self.errors}"
        lines = self.errors.strip().splitlines()
        if self.code in (1, 2) and len(lines) != 1:
            return f"exit code {self.code} with {len(lines)} lines: {self.errors}"
        return "" if self.code in (0, 1, 2) else f"exit code {self.code}: {self.errors}"


class Victim:
    """A forked process that runs a function.

    Args:
        work: runs in the process; returns the exit code.
        log: the file for its standard output; standard error goes to the same name with `.err`.
    """

    def __init__(self, work: Callable[[], int], log: Path) -> None:
        self._errors = log.with_suffix(".err")
        self._ended: End | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(work, log, self._errors)

    def kill(self) -> None:
        """Kill the process, wherever it is, and return when it has ended."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self, seconds: float = LIMIT_SECONDS) -> End | None:
        """Return the end; None if the process has not ended within `seconds`."""
        until = time.monotonic() + seconds
        while self._ended is None and time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = self._end(os.waitstatus_to_exitcode(status))
            else:
                time.sleep(0.002)
        return self._ended

    def end(self) -> End:
        """Return the end; kill a process that hangs."""
        end = self.wait()
        if end is None:
            self.kill()
            end = self._ended = self._end(None)
        return end

    def end_or_kill(self, seconds: float) -> End:
        """Return the end, after a SIGKILL if the process has not ended within `seconds`."""
        if self.wait(seconds) is None:
            self.kill()
        return self.end()

    def _end(self, code: int | None) -> End:
        written = self._errors.exists()
        return End(code, self._errors.read_text(errors="replace") if written else "")


def _become(work: Callable[[], int], *logs: Path) -> NoReturn:
    code = 70
    try:
        for stream, path in enumerate(logs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def prepare(folder: Path, *modules: str) -> dict[str, Path]:
    """Import what forked processes need; write the experiments; return their files by method.

    This process must compute nothing, because the threads of a computation do not survive a fork.
    Hence another process writes the experiments.
    """
    os.environ["MPLBACKEND"] = "Agg"
    os.environ["FEDRAY_CACHE"] = str(folder / "cache")
    for module in (*_IMPORTED, *modules):
        import_module(module)

    def write() -> int:
        write_experiments(folder)
        return 0

    run_undisturbed(write, folder / "prepare.log")
    return {method: folder / f"{method}.yaml" for method in METHODS}


def run_undisturbed(work: Callable[[], int], log: Path, limit: float = LIMIT_SECONDS) -> float:
    """Run a function in a forked process and return its seconds.

    Raises:
        RuntimeError: if it fails: then nothing can be compared with it.
    """
    began, victim = time.monotonic(), Victim(work, log)
    end = victim.wait(limit) or victim.end()
    if end.code != 0:
        raise RuntimeError(f"does not work undisturbed: {end.errors}")
    return time.monotonic() - began


def run_command(
    experiment: Path, out: Path, words: Sequence[str], before: Callable[[], None] | None = None
) -> Callable[[], int]:
    """Return a function that runs or resumes `out` by `fedray.run`, after calling `before`."""

    def work() -> int:
        from fedray.run import main

        if before is not None:
            before()
        if RunFolder(out).has_run:
            return main(["--resume", str(out), *words])
        return main([str(experiment), *words, "--out", str(out)])

    return work


# --- verdicts -------------------------------------------------------------------------------------


def defect(end: End, out: Path, undisturbed: Path) -> str:
    """Return why a run did not end as the undisturbed run; "" if it did."""
    return end.fault or (end.errors if end.code else difference(out, undisturbed))


def difference(out: Path, undisturbed: Path) -> str:
    """Return what distinguishes a finished run from the undisturbed one; "" for nothing."""
    try:
        mine, theirs = RunFolder(out).read(), RunFolder(undisturbed).read()
    except UserError as error:
        return str(error)
    return (
        _rounds_difference(mine, theirs)
        or _tensors_difference(_tensors(out), _tensors(undisturbed))
        or _leftovers(out)
    )


def _rounds_difference(mine: Run, theirs: Run) -> str:
    numbers = [done.round for done in mine.rounds]
    if numbers != list(range(theirs.done + 1)):
        return f"the rounds are {numbers}"
    for one, other in zip(mine.rounds, theirs.rounds, strict=True):
        first, second = asdict(one), asdict(other)
        for key in second:
            if key not in MEASURED_SECONDS and first[key] != second[key]:
                return f"round {one.round}: {key} is {first[key]}, undisturbed {second[key]}"
    for name in ("identity", "data_sha256", "partition_sha256"):
        if getattr(mine.info, name) != getattr(theirs.info, name):
            return f"{name} differs"
    return ""


def _tensors(out: Path) -> dict[str, Any]:
    """Return every tensor of the last checkpoint as plain numbers, by place."""
    checkpoint = StateStore(RunFolder(out).states).load()
    if checkpoint is None:
        return {}
    clients = {str(client): vars(state) for client, state in checkpoint.clients.items()}
    tree = {"server": checkpoint.snapshot.server, "clients": clients}
    return {
        f"{checkpoint.snapshot.round} {'/'.join(path)} {tensor.dtype}": tensor.tolist()
        for path, tensor in leaves(tree)
    }


def _tensors_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    if mine.keys() != theirs.keys():
        return f"the checkpoints hold other tensors: {sorted(mine.keys() ^ theirs.keys())[:3]}"
    differing = [name for name in mine if mine[name] != theirs[name]]
    return f"tensor {differing[0]} differs" if differing else ""


def _leftovers(out: Path) -> str:
    """Name files that a finished run does not need."""
    left = sorted({path.name for path in out.iterdir()} - _FILES)
    store = StateStore(RunFolder(out).states)
    store.load()
    before = {*store.folder.glob("*")}
    store.tidy()
    left += map(str, before - {*store.folder.glob("*")})
    left += [str(path) for path in out.rglob("*.tmp*")]
    return f"left over: {left}" if left else ""
