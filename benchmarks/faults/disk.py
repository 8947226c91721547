"""Fill the disk at a random operation of a run, in its folder or in the cache, then free it.

If this process may mount, the disk is a small one in memory that really runs out, also in the
middle of a file. Otherwise the operation itself fails (`OSError`, ENOSPC).
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import harness
from benchmarks.faults.experiments import METHODS
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect
from benchmarks.faults.kills import watch_changes

MEGABYTES = 24
PAGE = 4096
MOST_PAGES_LEFT = 12
"""Free pages of a full disk, at most: the next write stops in the middle of a file."""
MOST_ATTEMPTS = 4
"""Times that the disk fills under one run."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Fill the disk `count` times, shared out over methods."""
    files, disk = harness.prepare(folder), folder / "disk"
    disk.mkdir()
    os.environ["FEDRAY_CACHE"] = str(disk / "cache")
    tally = Tally()
    with small_disk(disk) as is_real:
        for number, method in enumerate(METHODS):
            share = count // len(METHODS) + (number < count % len(METHODS))
            draw = random.Random(f"{seed}/{method}")
            tally += Filling(method, files[method], disk, draw, is_real).fill(share)
            tally.print_progress()
    return tally


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """Mount a small disk in memory; yield whether the mount was allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={MEGABYTES}m".encode()
    is_mounted = libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options) == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            libc.umount2(os.fsencode(place), 2)  # detach now, unmount when nobody has it open


@dataclass
class Filling:
    """Runs of one experiment on a disk that fills.

    Attributes:
        name: name of the method in the tally.
        experiment: its file.
        disk: the folder for everything that the runs write.
        random: draws the moments.
        is_real: whether the disk can be filled; otherwise operations fail instead.
    """

    name: str
    experiment: Path
    disk: Path
    random: random.Random
    is_real: bool
    tally: Tally = field(default_factory=Tally)

    def fill(self, count: int) -> Tally:
        """Fill the disk `count` times; return the outcomes."""
        undisturbed = self.experiment.with_name(f"{self.name}-undisturbed")
        self._log = self.experiment.with_name(f"{self.name}.log")
        harness.run_undisturbed(self._command(undisturbed), self._log)
        while self.tally.count < count:
            self._one_run(undisturbed, min(MOST_ATTEMPTS, count - self.tally.count))
        return self.tally

    def _one_run(self, undisturbed: Path, most: int) -> None:
        """Fill the disk again and again until the run ends, at most `most` times."""
        out = self.disk / "run"
        faults: list[str] = []
        for attempt in range(most):
            fault = f"{self.name}: disk full, images cached"
            if attempt == 0 and self.random.random() < 0.3:
                fault = f"{self.name}: disk full, images not cached yet"
                shutil.rmtree(self.disk / "cache", ignore_errors=True)
            end = Victim(self._command(out, self._trap()), self._log).end()
            (self.disk / "ballast").unlink(missing_ok=True)
            if wrong := _defect_when_full(end):
                self.tally.add([fault], "", f"{out}, attempt {attempt}: {wrong}")
            else:
                faults.append(fault)
            if end.code == 0:
                break
        else:
            end = Victim(self._command(out), self._log).end()
        wrong = defect(end, out, undisturbed)
        self.tally.add(faults, "one sentence or none; identical after --resume", wrong)
        shutil.rmtree(out, ignore_errors=True)

    def _command(self, out: Path, before: Callable[[], None] | None = None) -> Callable[[], int]:
        return harness.run_command(self.experiment, out, SERIAL, before)

    def _trap(self) -> Callable[[], None]:
        """Return a function after which the disk is full from a random change on."""
        first, pages = self.random.randrange(1, 90), self.random.randrange(MOST_PAGES_LEFT)

        def act(number: int, event: str, args: tuple[Any, ...]) -> None:
            if self.is_real and number == first:
                _fill(self.disk / "ballast", pages)
            elif not self.is_real and number >= first and event in ("open", "os.mkdir", "os.link"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

        return partial(watch_changes, self.disk, act)


def _defect_when_full(end: harness.End) -> str:
    """Return what is wrong with the end of a run on a full disk."""
    if end.fault or end.code == 0:
        return end.fault
    if "space left" not in end.errors and "cannot be written" not in end.errors:
        return f"the reason is not named: {end.errors}"
    return f"the code is blamed: {end.errors}" if "--debug" in end.errors else ""


def _fill(ballast: Path, pages: int) -> None:
    """Write a file that leaves `pages` pages of its disk free."""
    status = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        size = status.f_bavail * status.f_frsize - pages * PAGE
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)
