"""The driver dies: SIGKILL at random moments of a serial run, then --resume, again and again.

Half the moments are drawn in time, from outside; half are drawn among the run's operations on its
folder (open, rename, link, remove, ...), just before one of them is made.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.experiments import METHODS, write_experiments
from benchmarks.faults.folders import difference, words_to_go_on
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import End, Victim, import_all, run_command

VARIANTS = (("checkpoint_every=1",), ("checkpoint_every=3",))
SERIAL = ("--executor", "serial", "--no-track")
CHANGES = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"}
"""Audit events of operations that change a folder."""
FEWEST = 4
"""Kills of one kind, so that few of them need few undisturbed runs."""
REACH = 0.6
"""How far into an undisturbed run's length a kill may come; a resumed one has less before it."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` times, shared out over methods and how often checkpoints are written."""
    import_all()
    os.environ["FEDRAY_CACHE"] = str(folder / "cache")
    experiments = prepare(folder)
    kinds = [(method, variant) for variant in VARIANTS for method in METHODS]
    random.Random(seed).shuffle(kinds)
    kinds = kinds[: max(1, count // FEWEST)]
    tally = Tally()
    for number, (method, variant) in enumerate(kinds):
        share = count // len(kinds) + (number < count % len(kinds))
        tally += Chain(
            name=method,
            experiment=experiments[method],
            variant=variant,
            folder=folder / f"{method}-{number}",
            random=random.Random(f"{seed}/{method}/{variant}"),
        ).kill(share)
        tally.say()
    return tally


def prepare(folder: Path) -> dict[str, Path]:
    """The experiments' files, written by a process of its own: this one must not compute."""

    def write() -> int:
        write_experiments(folder)
        return 0

    end = Victim(write, folder / "prepare.log").end()
    if end.code != 0:
        raise RuntimeError(end.errors)
    return {method: folder / f"{method}.yaml" for method in METHODS}


@dataclass
class Chain:
    """Runs of one experiment, each killed and resumed until it has come to its end.

    Attributes:
        name: what the tally calls it.
        experiment: its file.
        variant: assignments laid on it.
        folder: for everything that the runs write; it need not exist.
        random: draws the moments.
    """

    name: str
    experiment: Path
    variant: tuple[str, ...]
    folder: Path
    random: random.Random
    tally: Tally = field(default_factory=Tally)

    def kill(self, count: int) -> Tally:
        """Kill `count` times; give what came of it."""
        self.folder.mkdir()
        undisturbed = self.folder / "undisturbed"
        began = time.monotonic()
        counted = Victim(self._counting(undisturbed), self.folder / "log")
        end = counted.end()
        if end.code != 0:
            raise RuntimeError(f"{self.name} does not run undisturbed: {end.errors}")
        self._seconds = time.monotonic() - began
        self._changes = int((self.folder / "changes").read_text())
        runs = 0
        while self.tally.count < count:
            self._one_run(self.folder / f"run-{runs}", undisturbed, count)
            runs += 1
        return self.tally

    def _one_run(self, out: Path, undisturbed: Path, count: int) -> None:
        """Kill and go on until the run has ended, or has been killed often enough."""
        moments: list[str] = []
        while self.tally.count + len(moments) < count:
            fault, end = self._disturbed(out)
            if not end.was_killed:
                break
            moments.append(fault)
        else:
            end = self._victim(out).end()
        wrong = end.fault or (end.errors if end.code != 0 else difference(out, undisturbed))
        for fault in moments:
            if wrong:
                self.tally.add_wrong(fault, f"{out} after {len(moments)} kills: {wrong}")
                wrong = ""
            else:
                self.tally.add(fault, "identical after --resume")

    def _disturbed(self, out: Path) -> tuple[str, End]:
        """Start or go on, and kill at a random moment, if it comes before the end."""
        if self.random.random() < 0.5:
            end = self._victim(out).end_or_kill(self.random.uniform(0, self._seconds * REACH))
            return f"{self.name}: killed at a moment", end
        trap = _killed_before(self.random.randint(1, round(self._changes * REACH)), out)
        return f"{self.name}: killed at a change of its folder", self._victim(out, trap).end()

    def _victim(self, out: Path, trap: Callable[[str, tuple[Any, ...]], None] | None = None) -> Any:
        words = words_to_go_on(self.experiment, out, self.variant)
        command = run_command([*words, *SERIAL])

        def work() -> int:
            if trap is not None:
                sys.addaudithook(trap)
            return command()

        return Victim(work, self.folder / "log")

    def _counting(self, out: Path) -> Callable[[], int]:
        """The undisturbed run, which counts its changes."""
        command = run_command([*words_to_go_on(self.experiment, out, self.variant), *SERIAL])
        counted: list[None] = []

        def work() -> int:
            sys.addaudithook(
                lambda event, args: is_change(event, args, out) and counted.append(None)
            )
            code = command()
            (self.folder / "changes").write_text(str(len(counted)))
            return code

        return work


def is_change(event: str, args: tuple[Any, ...], out: Path) -> bool:
    """Whether an audit event is a change of something in the run's folder."""
    return event in CHANGES and any(str(out) in str(arg) for arg in args[:2])


def _killed_before(which: int, out: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that kills its process at the `which`-th change of a folder."""
    left = which

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if is_change(event, args, out):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook
