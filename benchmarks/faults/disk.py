"""The disk is full: at a random operation of a run, in its folder or in the cache.

Where this process may mount, the disk is a small one of memory, which really runs out, in the
middle of a file too. Elsewhere the operation itself fails (`OSError`, ENOSPC). Then there is room
again, and the run goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.experiments import METHODS
from benchmarks.faults.folders import difference, words_to_go_on
from benchmarks.faults.kills import SERIAL, is_change, prepare
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import End, Victim, import_all, run_command

MEGABYTES = 24
PAGE = 4096
MOST_PAGES_LEFT = 12
"""A full disk still has room for up to so many pages: what is written stops in its middle."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Fill the disk `count` times, shared out over methods."""
    import_all()
    files = prepare(folder)
    disk = folder / "disk"
    disk.mkdir()
    tally = Tally()
    with small_disk(disk) as is_real:
        for number, method in enumerate(METHODS):
            share = count // len(METHODS) + (number < count % len(METHODS))
            generator = random.Random(f"{seed}/{method}")
            tally += Filling(method, files[method], disk, generator, is_real).fill(share)
            tally.say()
    return tally


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """Mount a disk of some megabytes of memory; gives whether that was allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={MEGABYTES}m".encode()
    is_mounted = libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options) == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            libc.umount2(os.fsencode(place), 2)  # detached now, gone when nobody has it open


@dataclass
class Filling:
    """Runs of one experiment on a disk that fills.

    Attributes:
        name: what the tally calls it.
        experiment: its file.
        disk: where everything is written.
        random: draws the moments.
        is_real: whether the disk can be filled; else operations are made to fail.
    """

    name: str
    experiment: Path
    disk: Path
    random: random.Random
    is_real: bool
    tally: Tally = field(default_factory=Tally)

    @property
    def _ballast(self) -> Path:
        return self.disk / "ballast"

    def fill(self, count: int) -> Tally:
        """Fill the disk `count` times; give what came of it."""
        undisturbed = self.experiment.with_name(f"{self.name}-undisturbed")
        os.environ["FEDRAY_CACHE"] = str(self.disk / "cache")
        end = self._victim(undisturbed).end()
        if end.code != 0:
            raise RuntimeError(f"{self.name} does not run undisturbed: {end.errors}")
        while self.tally.count < count:
            self._one_run(undisturbed)
        return self.tally

    def _one_run(self, undisturbed: Path) -> None:
        """Fill the disk in a run until it has come to its end."""
        out, number = self.disk / "run", 0
        faults: list[str] = []
        while number < 4:
            number += 1
            with_cache = number == 1 and self.random.random() < 0.3
            fault = f"{self.name}: disk full, " + (
                "images not cached yet" if with_cache else "images cached"
            )
            if with_cache:
                shutil.rmtree(self.disk / "cache", ignore_errors=True)
            end = self._victim(out, self._trap(self.random.randrange(1, 90))).end()
            self._ballast.unlink(missing_ok=True)
            wrong = self._wrong(end, out)
            faults.append(fault)
            if wrong:
                self.tally.add_wrong(fault, f"{out}, time {number}: {wrong}")
                faults.pop()
            if end.code == 0:
                break
        end = self._victim(out).end() if end.code != 0 else end
        wrong = end.fault or (end.errors if end.code else difference(out, undisturbed))
        for fault in faults:
            if wrong:
                self.tally.add_wrong(fault, f"after {number} times: {wrong}")
                wrong = ""
            else:
                self.tally.add(fault, "one sentence or none; identical after --resume")
        shutil.rmtree(out, ignore_errors=True)

    def _wrong(self, end: End, out: Path) -> str:
        """What is wrong with the end of a run on a full disk."""
        if end.fault or end.code == 0:
            return end.fault
        if "space left" not in end.errors and "cannot be written" not in end.errors:
            return f"the reason is not named: {end.errors}"
        return f"the code is blamed: {end.errors}" if "--debug" in end.errors else ""

    def _victim(self, out: Path, trap: Callable[[str, tuple[Any, ...]], None] | None = None) -> Any:
        command = run_command([*words_to_go_on(self.experiment, out), *SERIAL])

        def work() -> int:
            if trap is not None:
                sys.addaudithook(trap)
            return command()

        return Victim(work, self.experiment.with_name(f"{self.name}.log"))

    def _trap(self, which: int) -> Callable[[str, tuple[Any, ...]], None]:
        """An audit hook: from the `which`-th change on, the disk is full."""
        left, pages = which, self.random.randrange(MOST_PAGES_LEFT)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            if not is_change(event, args, self.disk) or args[0] == str(self._ballast):
                return
            left -= 1
            if self.is_real and left == 0:
                _fill(self._ballast, pages)
            elif not self.is_real and left <= 0 and event in ("open", "os.mkdir", "os.link"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

        return hook


def _fill(ballast: Path, pages: int) -> None:
    """Write a file that leaves so many pages of its disk free."""
    status = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        size = status.f_bavail * status.f_frsize - pages * PAGE
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)
