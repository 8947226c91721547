"""Kill Ray's processes under a run: its workers, its server actor, its driver.

Workers and servers die one after the other within a living run, which goes on by itself. A killed
driver is resumed at once, while the Ray processes that it left are still ending.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import SERVER, WORKER, actors, descendants, ray_folder, still_running
from benchmarks.faults import harness
from benchmarks.faults.experiments import METHODS
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect

ON_RAY = ("--executor", "ray", "--no-track")
WORDS = ("workers=2", "cpus=1", "rounds=40", "faults.max_failures=100000")
PER_RUN = 40
"""Kills in one run, before it may end."""
SHARES = {WORKER: 0.85, SERVER: 0.12, "driver": 0.03}
LIMIT_SECONDS = 3600.0
PAUSE_SECONDS = (0.2, 3.0)


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` processes, in runs of one method after the other."""
    files = harness.prepare(folder, "fedray.runtime.server")
    tally = Tally()
    with ray_folder():
        for number in range(-(-count // PER_RUN)):
            method = METHODS[number % len(METHODS)]
            draw = random.Random(f"{seed}/{number}")
            disturbed = Disturbed(method, files[method], folder / f"{method}-{number}", draw)
            tally += disturbed.kill(min(PER_RUN, count - tally.count))
            tally.print_progress()
    return tally


@dataclass
class Disturbed:
    """A run on Ray whose processes are killed at random.

    Attributes:
        name: name of the method in the tally.
        experiment: its file.
        out: its new folder.
        random: draws moments and processes.
    """

    name: str
    experiment: Path
    out: Path
    random: random.Random

    def kill(self, count: int) -> Tally:
        """Kill up to `count` processes, wait for the end of the run, return the outcomes."""
        faults: list[str] = []
        wrong, end, driver = "", None, self._start()
        until = time.monotonic() + LIMIT_SECONDS
        while len(faults) < count and not wrong:
            end = driver.wait(self.random.uniform(*PAUSE_SECONDS))
            if end is not None or time.monotonic() > until:
                break
            wrong, driver = self._disturb(driver, faults)
        end = end or driver.wait(max(60.0, until - time.monotonic()))
        if end is None:
            wrong = "the run has not ended"
            left = descendants(driver.pid)
            driver.kill()
            still_running(left)
        else:
            wrong = wrong or defect(end, self.out, self._undisturbed())
        if wrong and not faults:
            raise RuntimeError(f"{self.name} does not run undisturbed: {wrong}")
        tally = Tally()
        wrong = wrong and f"{self.out} after {len(faults)} kills: {wrong}"
        tally.add(faults, "identical", wrong)
        shutil.rmtree(self.out, ignore_errors=True)
        return tally

    def _undisturbed(self) -> Path:
        """Return the folder of the same run in one process; it is made once per method."""
        out = self.experiment.with_name(f"{self.name}-undisturbed")
        if not out.exists():
            harness.run_undisturbed(self._command(out, SERIAL), self.experiment.with_suffix(".log"))
        return out

    def _start(self) -> Victim:
        return Victim(self._command(self.out, ON_RAY), self.experiment.with_suffix(".log"))

    def _command(self, out: Path, options: tuple[str, ...]) -> Callable[[], int]:
        return harness.run_command(self.experiment, out, [*WORDS, *options])

    def _disturb(self, driver: Victim, faults: list[str]) -> tuple[str, Victim]:
        """Kill a random process, if it exists; return the defect and the living driver."""
        what = self.random.choices([*SHARES], [*SHARES.values()])[0]
        if what == "driver":
            left = descendants(driver.pid)
            driver.kill()
            faults.append(f"{self.name}: driver on Ray killed, then --resume")
            driver = self._start()
            remaining = still_running(left)
            return f"left by a killed driver: {remaining}" if remaining else "", driver
        while driver.wait(self.random.uniform(*PAUSE_SECONDS)) is None:
            processes = actors(driver.pid, what)
            with suppress(psutil.Error, IndexError):  # there may be none, or it has just ended
                self.random.choice(processes).kill()
                faults.append(f"{self.name}: {what.removeprefix('ray::')} killed")
                break
        return "", driver
