"""Replies that are late or never come: workers stopped (SIGSTOP) for a while in living runs.

Without a time-out such a run equals the undisturbed one. With one, it equals the serial run in
which those steps failed whose replies were late: a reply that came later never counted.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults.experiments import METHODS
from benchmarks.faults.folders import words_to_go_on
from benchmarks.faults.kills import SERIAL, prepare
from benchmarks.faults.processes import WORKER, actors, ray_folder
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import Victim, import_all, run_command
from benchmarks.faults.workers import PER_RUN, PLENTY, Disturbed
from fedray.records import RunFolder

TIMEOUT_SECONDS = 3.0
STOPPED_SECONDS = (0.1, 2.5 * TIMEOUT_SECONDS)
TIMED = (f"faults.reply_timeout_s={TIMEOUT_SECONDS:g}", "faults.on_client_error=drop")
LATE = f"no reply within {TIMEOUT_SECONDS:g} s"


def run(count: int, seed: int, folder: Path) -> Tally:
    """Stop workers `count` times, in runs with and without a time-out by turns."""
    import_all("fedray.runtime.server")
    os.environ["FEDRAY_CACHE"] = str(folder / "cache")
    files = prepare(folder)
    tally = Tally()
    with ray_folder():
        for number in range(-(-count // PER_RUN)):
            method = METHODS[number // 2 % len(METHODS)]
            is_timed = number % 2 == 0
            stopping = Stopping(
                name=method,
                experiment=files[method],
                out=folder / f"{method}-{number}",
                random=random.Random(f"{seed}/{number}"),
                words=(*PLENTY, *TIMED) if is_timed else PLENTY,
                is_timed=is_timed,
            )
            tally += stopping.kill(min(PER_RUN, count - tally.count))
            tally.say()
    return tally


@dataclass
class Stopping(Disturbed):
    """One run on Ray whose workers are stopped for a while.

    Attributes:
        is_timed: whether late replies are dropped.
    """

    is_timed: bool = False

    def disturb(self, driver: Victim, stopped: Counter[str]) -> tuple[str, Victim]:
        """Stop a worker for a while, if there is one."""
        found = actors(driver.pid, WORKER)
        if found:
            victim = self.random.choice(found)
            try:
                victim.suspend()
                time.sleep(self.random.uniform(*STOPPED_SECONDS))
                victim.resume()
            except psutil.NoSuchProcess:  # it was replaced meanwhile
                pass
            how = "late replies dropped" if self.is_timed else "replies awaited"
            stopped[f"{self.name}: worker stopped for a while, {how}"] += 1
        return "", driver

    def undisturbed(self) -> Path:
        """The serial run; with a time-out, the one in which the same steps fail."""
        if not self.is_timed:
            return super().undisturbed()
        late = {
            (done.round, event.client)
            for done in RunFolder(self.out).rounds()
            for event in done.events
            if event.what == f"failed: {LATE}"
        }
        out = self.experiment.with_name(f"{self.out.name}-without")
        shutil.rmtree(out, ignore_errors=True)
        words = [word for word in self.words if word != TIMED[0]]
        command = run_command([*words_to_go_on(self.experiment, out, words), *SERIAL])

        def work() -> int:
            _fail_steps(late)
            return command()

        end = Victim(work, self.experiment.with_suffix(".log")).end()
        if end.code != 0:
            raise RuntimeError(f"{self.name} does not run without the late: {end.errors}")
        return out


def _fail_steps(late: set[tuple[int, int]]) -> None:
    """Have these clients' steps in these rounds end without a reply, in this process."""
    from fedray.errors import Failure
    from fedray.federation import Reply
    from fedray.runtime.clients import ClientRuntime

    whole = ClientRuntime.step

    def step(self: ClientRuntime, name: str, round_: int, client: int, *args: object) -> object:
        if (round_, client) in late:
            return Reply(failure=Failure(LATE)), args[0]
        return whole(self, name, round_, client, *args)  # type: ignore[arg-type]

    ClientRuntime.step = step  # type: ignore[assignment, method-assign]
