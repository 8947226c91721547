"""Ray's processes die under a run: its workers, its server, its driver.

Workers and server are killed one after the other within a living run, which goes on by itself. A
killed driver is resumed at once, while Ray's processes that it left are still ending.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.faults.experiments import METHODS
from benchmarks.faults.folders import difference, words_to_go_on
from benchmarks.faults.kills import SERIAL, prepare
from benchmarks.faults.processes import SERVER, WORKER, actors, below, ray_folder, still_there
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import End, Victim, import_all, run_command

ON_RAY = ("--executor", "ray", "--no-track")
ROUNDS = 40
PLENTY = ("workers=2", "cpus=1", f"rounds={ROUNDS}", "faults.max_failures=100000")
PER_RUN = 40
"""Injections into one run, before it is let come to its end."""
SHARES = {WORKER: 0.85, SERVER: 0.12, "driver": 0.03}
LIMIT_SECONDS = 3600.0
PAUSE_SECONDS = (0.2, 3.0)


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` processes, in runs of one method after the other."""
    import_all("fedray.runtime.server")
    os.environ["FEDRAY_CACHE"] = str(folder / "cache")
    files = prepare(folder)
    tally = Tally()
    with ray_folder():
        for number in range(-(-count // PER_RUN)):
            method = METHODS[number % len(METHODS)]
            disturbed = Disturbed(
                name=method,
                experiment=files[method],
                out=folder / f"{method}-{number}",
                random=random.Random(f"{seed}/{number}"),
            )
            tally += disturbed.kill(min(PER_RUN, count - tally.count))
            tally.say()
    return tally


@dataclass
class Disturbed:
    """One run on Ray whose processes are killed at random.

    Attributes:
        name: what the tally calls it.
        experiment: its file.
        out: its folder, which does not exist yet.
        random: draws moments and processes.
        shares: how often which process is meant.
        words: assignments laid on the experiment.
    """

    name: str
    experiment: Path
    out: Path
    random: random.Random
    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))
    words: tuple[str, ...] = PLENTY

    def kill(self, count: int) -> Tally:
        """Kill so many processes, then let the run come to its end; give what came of it."""
        killed: Counter[str] = Counter()
        wrong, end = "", None
        driver = self._start()
        until = time.monotonic() + LIMIT_SECONDS
        while killed.total() < count and not wrong:
            end = driver.wait(self.random.uniform(*PAUSE_SECONDS))
            if end is not None or time.monotonic() > until:
                break
            wrong, driver = self.disturb(driver, killed)
        end = end or driver.wait(max(60.0, until - time.monotonic()))
        if end is None:
            wrong = "the run has not ended"
            self._end_hanging(driver)
        wrong = wrong or self._wrong(end)
        if wrong and not killed:
            raise RuntimeError(f"{self.name} does not run undisturbed: {wrong}")
        tally = Tally()
        for fault, times in killed.items():
            for _ in range(times):
                if wrong:
                    tally.add_wrong(fault, f"{self.out} after {killed.total()}: {wrong}")
                    wrong = ""
                else:
                    tally.add(fault, "identical")
        shutil.rmtree(self.out, ignore_errors=True)
        return tally

    def undisturbed(self) -> Path:
        """The run in one process that this one must equal; once for each method."""
        out = self.experiment.with_name(f"{self.name}-undisturbed")
        if not out.exists():
            words = words_to_go_on(self.experiment, out, self.words)
            end = Victim(run_command([*words, *SERIAL]), self._log).end()
            if end.code != 0:
                raise RuntimeError(f"{self.name} does not run undisturbed: {end.errors}")
        return out

    @property
    def _log(self) -> Path:
        return self.experiment.with_name(f"{self.name}.log")

    def _start(self) -> Victim:
        words = words_to_go_on(self.experiment, self.out, self.words)
        return Victim(run_command([*words, *ON_RAY]), self._log)

    def disturb(self, driver: Victim, killed: Counter[str]) -> tuple[str, Victim]:
        """Kill what is drawn, if it is there; give what is wrong, and the driver that lives."""
        what = self.random.choices([*self.shares], [*self.shares.values()])[0]
        if what == "driver":
            left = below(driver.pid)
            driver.kill()
            driver.wait()
            killed[f"{self.name}: driver on Ray killed, then --resume"] += 1
            driver = self._start()
            remaining = still_there(left)
            return f"left by a killed driver: {remaining}" if remaining else "", driver
        while driver.wait(self.random.uniform(*PAUSE_SECONDS)) is None:
            found = actors(driver.pid, what)
            if found and _kill(self.random.choice(found)):
                killed[f"{self.name}: {what.removeprefix('ray::')} killed"] += 1
                break
        return "", driver

    def _wrong(self, end: End | None) -> str:
        if end is None:
            return "the run has not ended"
        return end.fault or (end.errors if end.code else difference(self.out, self.undisturbed()))

    def _end_hanging(self, driver: Victim) -> None:
        left = below(driver.pid)
        driver.kill()
        driver.wait()
        still_there(left)


def _kill(process: psutil.Process) -> bool:
    """Whether it was still there."""
    try:
        process.kill()
    except psutil.Error:
        return False
    return True
