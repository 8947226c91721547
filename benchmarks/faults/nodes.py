"""Kill nodes of a cluster on this machine, made by Ray's own test cluster on the loopback.

A node takes its workers and what they held with it. Another joins at once, or later. All workers at
once may die too. After each kill the seconds are taken until the run had done two more rounds.
`faults.max_failures` has its default.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import WORKER, actors, descendants, ray_folder, still_running
from benchmarks.faults import harness
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect
from benchmarks.faults.workers import LIMIT_SECONDS, ON_RAY

HEAD = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False}
"""Ray replaces 127.0.0.1 by this machine's outer address; other loopback addresses stay."""
PER_RUN = 4
SPARE, LATER = "a node, one is spare", "a node, another joins later"
ALL, WORKERS = "all nodes, then another", "every worker at once"
SCENES = (SPARE, LATER, ALL, WORKERS)
RECOVERY_SECONDS = 400.0
WORDS = ("workers=2", "cpus=2", "model.feature_dim=512", "rounds=400")
"""States of more than 100 kB, which stay on the node of the worker that made them."""
_numbers = itertools.count(1)


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` times, scene by scene, beginning with scene number `seed`."""
    tally, seconds = Tally(), defaultdict[str, list[float]](list)
    experiment = harness.prepare(folder, "fedray.runtime.server")["scaffold"]
    undisturbed = folder / "undisturbed"
    command = harness.run_command(experiment, undisturbed, [*WORDS, *SERIAL])
    harness.run_undisturbed(command, folder / "log")
    with ray_folder():
        for number in itertools.count(seed):
            if tally.count >= count:
                break
            scene, out = SCENES[number % len(SCENES)], folder / f"run-{number}"
            disturbed = Disturbed(scene, experiment, out, random.Random(f"{seed}/{number}"))
            wrong, recoveries = disturbed.kill(min(PER_RUN, count - tally.count), undisturbed)
            tally.add([f"{scene} killed"] * len(recoveries), "identical", wrong)
            seconds[scene] += recoveries
            tally.print_progress()
    for scene, recoveries in seconds.items():
        print(f"{scene}: recovered in {min(recoveries):.1f} to {max(recoveries):.1f} s")
    return tally


@dataclass
class Disturbed:
    """A run on a cluster of its own, whose nodes die.

    Attributes:
        scene: what is killed, and what takes its place.
        experiment: its file.
        out: its new folder.
        random: draws moments and nodes.
    """

    scene: str
    experiment: Path
    out: Path
    random: random.Random

    def kill(self, count: int, undisturbed: Path) -> tuple[str, list[float]]:
        """Kill up to `count` times while the run goes on.

        Returns:
            What is wrong with its end, and the seconds until it recovered from each kill.
        """
        host = Victim(lambda: self._work(count), self.out.with_suffix(".log"))
        end, left = host.wait(LIMIT_SECONDS), descendants(host.pid)
        if end is None:
            end = host.end_or_kill(0)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        wrong = defect(replace(end, errors=_own_words(end.errors)), self.out, undisturbed)
        if remaining := still_running(left):
            wrong = f"left over: {remaining}"
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        if not lines:
            raise RuntimeError(f"the run ended before a kill: {wrong}\n{end.errors}")
        if wrong:
            wrong = f"{self.out}: {wrong}\n{end.errors}"
        else:
            shutil.rmtree(self.out, ignore_errors=True)
        return wrong, [float(line) for line in lines]

    @property
    def _record(self) -> Path:
        return self.out.with_suffix(".killed")

    def _work(self, count: int) -> int:
        """Start a cluster, run on it and kill meanwhile; return the exit code."""
        import ray
        from ray.cluster_utils import Cluster

        # Without Ray's signal handlers, which a thread that adds a node must not set.
        cluster = Cluster(initialize_head=True, head_node_args=HEAD, shutdown_at_exit=False)
        nodes = [_add_node(cluster) for _ in range(3 if self.scene == SPARE else 2)]
        os.environ["RAY_ADDRESS"] = cluster.address
        is_over = threading.Event()
        work = (cluster, nodes, count, is_over)
        killer = threading.Thread(target=self._disturb, args=work, daemon=True)
        killer.start()
        try:
            return harness.run_command(self.experiment, self.out, [*WORDS, *ON_RAY])()
        finally:
            is_over.set()
            killer.join(30)  # it may be about to record a kill that ended the run
            ray.shutdown()
            cluster.shutdown()

    def _disturb(
        self, cluster: Any, nodes: list[Any], count: int, is_over: threading.Event
    ) -> None:
        """Kill at random moments while the run goes on; record the recovery."""
        for _ in range(count):
            while not self._rounds() and not is_over.is_set():
                time.sleep(0.1)
            if is_over.wait(self.random.uniform(0.2, 4.0)):
                return
            before, at = self._rounds(), time.monotonic()
            self._kill_once(cluster, nodes)
            recovery = self._recovered(before, is_over) - at
            with self._record.open("a") as file:
                file.write(f"{recovery}\n")

    def _kill_once(self, cluster: Any, nodes: list[Any]) -> None:
        if self.scene == WORKERS:
            for process in actors(os.getpid(), WORKER):
                with suppress(psutil.Error):
                    process.kill()
            return
        victims = [*nodes] if self.scene == ALL else [self.random.choice(nodes)]
        for victim in victims:
            nodes.remove(victim)
            cluster.remove_node(victim, allow_graceful=False)
        if self.scene != SPARE:
            time.sleep(self.random.uniform(1.0, 10.0))
        nodes += [_add_node(cluster) for _ in victims]

    def _rounds(self) -> int:
        """Return how many rounds the run has written."""
        path = self.out / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def _recovered(self, before: int, is_over: threading.Event) -> float:
        """Return the `time.monotonic` at which the run has done two more rounds or is over.

        It is infinite if that does not happen within `RECOVERY_SECONDS`.
        """
        until = time.monotonic() + RECOVERY_SECONDS
        while self._rounds() < before + 2 and not is_over.is_set():
            if time.monotonic() > until:
                return math.inf
            time.sleep(0.05)
        return time.monotonic()


def _own_words(errors: str) -> str:
    """Remove what Ray says of killed processes and what they wrote, in colour."""
    own = [line for line in errors.splitlines(keepends=True) if not line.startswith("\x1b[")]
    return "".join(line for line in own if not line.startswith("a worker found no place"))


def _add_node(cluster: Any) -> Any:
    """Add a node of one CPU with its own address on the loopback."""
    return cluster.add_node(num_cpus=1, node_ip_address=f"127.0.1.{next(_numbers)}")
