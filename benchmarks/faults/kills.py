"""Kill the driver of a serial run with SIGKILL at random moments and resume it, again and again.

Half of the moments are random times. The other half are random operations of the run on its folder
(open, rename, link, remove, ...): the run dies just before such an operation.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults import harness
from benchmarks.faults.experiments import METHODS
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect

VARIANTS = ("checkpoint_every=1", "checkpoint_every=3")
CHANGES = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod"}
"""Audit events of operations that change a folder."""
FEWEST = 4
"""Kills of one method and variant, so that few kills need few undisturbed runs."""
REACH = 0.6
"""How far into an undisturbed run a kill may come; a resumed run has less before it."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` times, shared out over methods and checkpoint intervals."""
    experiments = harness.prepare(folder)
    kinds = [(method, variant) for variant in VARIANTS for method in METHODS]
    random.Random(seed).shuffle(kinds)
    kinds = kinds[: max(1, count // FEWEST)]
    tally = Tally()
    for number, (method, variant) in enumerate(kinds):
        share = count // len(kinds) + (number < count % len(kinds))
        draw, place = random.Random(f"{seed}/{method}/{variant}"), folder / f"{method}-{number}"
        tally += Chain(method, experiments[method], variant, place, draw).kill(share)
        tally.print_progress()
    return tally


@dataclass
class Chain:
    """Runs of one experiment, each killed and resumed until it ends.

    Attributes:
        name: name of the method in the tally.
        experiment: its file.
        variant: an assignment for the experiment.
        folder: a new folder for everything that the runs write.
        random: draws the moments.
    """

    name: str
    experiment: Path
    variant: str
    folder: Path
    random: random.Random
    tally: Tally = field(default_factory=Tally)

    def kill(self, count: int) -> Tally:
        """Kill `count` times; return the outcomes."""
        self.folder.mkdir()
        undisturbed, changes = self.folder / "undisturbed", self.folder / "changes"

        def note(number: int, *_: Any) -> None:
            changes.write_text(str(number))

        command = self._command(undisturbed, lambda: watch_changes(undisturbed, note))
        self._seconds = harness.run_undisturbed(command, self.folder / "log")
        self._changes = int(changes.read_text())
        runs = 0
        while self.tally.count < count:
            self._one_run(self.folder / f"run-{runs}", undisturbed, count - self.tally.count)
            runs += 1
        return self.tally

    def _one_run(self, out: Path, undisturbed: Path, most: int) -> None:
        """Kill and resume until the run has ended, at most `most` times."""
        faults: list[str] = []
        while len(faults) < most:
            fault, end = self._disturb(out)
            if not end.was_killed:
                break
            faults.append(fault)
        else:
            end = Victim(self._command(out), self.folder / "log").end()
        wrong = defect(end, out, undisturbed)
        wrong = wrong and f"{out} after {len(faults)} kills: {wrong}"
        self.tally.add(faults, "identical after --resume", wrong)

    def _disturb(self, out: Path) -> tuple[str, harness.End]:
        """Start or resume, and kill at a random moment unless the run ends before it."""
        if self.random.random() < 0.5:
            victim = Victim(self._command(out), self.folder / "log")
            end = victim.end_or_kill(self.random.uniform(0, self._seconds * REACH))
            return f"{self.name}: killed at a moment", end
        last = self.random.randint(1, round(self._changes * REACH))

        def die(number: int, *_: Any) -> None:
            if number == last:
                os.kill(os.getpid(), signal.SIGKILL)

        command = self._command(out, lambda: watch_changes(out, die))
        end = Victim(command, self.folder / "log").end()
        return f"{self.name}: killed at a change of its folder", end

    def _command(self, out: Path, before: Callable[[], None] | None = None) -> Callable[[], int]:
        return harness.run_command(self.experiment, out, [self.variant, *SERIAL], before)


def watch_changes(folder: Path, act: Callable[[int, str, tuple[Any, ...]], None]) -> None:
    """Call `act(number, event, args)` before each change below a folder by this process."""
    number = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal number
        if event in CHANGES and any(str(folder) in str(arg) for arg in args[:2]):
            number += 1
            act(number, event, args)

    sys.addaudithook(hook)
