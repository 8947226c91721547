"""Kill nodes of a cluster on this machine, made by Ray's own test cluster on the loopback.

A node takes its workers, perhaps a trial of a sweep, and what they held with it. Another joins at
once, later, or not at all. All workers at once may die too. After each kill the seconds are taken
until everything that was running had done two more rounds. `faults.max_failures` has its default.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import WORKER, actors, descendants, ray_folder, still_running
from benchmarks.faults import harness
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect
from benchmarks.faults.sweeps import sweep_command, write_sweep
from benchmarks.faults.workers import LIMIT_SECONDS, ON_RAY
from fedray.storage.run_folder import RunFolder, find_run_folders

HEAD = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False}
"""Ray replaces 127.0.0.1 by this machine's outer address; other loopback addresses stay."""
PER_RUN = 4
SPARE, LATER, NONE = "a node, one is spare", "a node, another joins later", "a node, and no other"
ALL, NOBODY = "all nodes, then another", "all nodes, and no other"
WORKERS = "every worker at once"
SCENES = (
    *(("run", scene) for scene in (SPARE, LATER, NONE, ALL, NOBODY, WORKERS)),
    *(("sweep", scene) for scene in (SPARE, LATER, ALL, WORKERS)),
)
REPEATED = (SPARE, LATER, ALL, WORKERS)
"""Scenes after which the command goes on by itself and can be disturbed again."""
RECOVERY_SECONDS = 400.0
SETTINGS = ("workers=2", "cpus=2", "model.feature_dim=512")
"""States of more than 100 kB, which stay on the node of the worker that made them."""
RUN_WORDS = (*SETTINGS, "rounds=400")
SWEEP_WORDS = (*SETTINGS, "rounds=150")
RATES = (0.02, 0.05, 0.1)
"""The learning rates of the sweep's three trials."""
Kills = tuple[str, list[float]]
"""A command's outcome ("WRONG: ..." for a defect), and the seconds until it recovered from each
kill: until every run had done two more rounds or was over; infinite if that did not happen."""
_numbers = itertools.count(1)


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` times, scene by scene, beginning with scene number `seed`."""
    tally, seconds = Tally(), defaultdict[str, list[float]](list)
    with Stage(folder) as stage:
        for number in itertools.count(seed):
            if tally.count >= count:
                break
            what, scene = SCENES[number % len(SCENES)]
            command = stage.run if what == "run" else stage.sweep
            fault, most = f"{what}: {scene} killed", min(PER_RUN, count - tally.count)
            outcome, recoveries = command(scene, most, f"{seed}/{number}")
            wrong = outcome if outcome.startswith("WRONG") else ""
            tally.add([fault] * len(recoveries), outcome, wrong)
            seconds[fault] += recoveries
            tally.print_progress()
    for fault, recoveries in seconds.items():
        print(f"{fault}: recovered in {min(recoveries):.1f} to {max(recoveries):.1f} s")
    return tally


class Stage:
    """A place where nodes are killed under runs and sweeps, each compared with its serial twin.

    Args:
        folder: for everything that is written, which all nodes see.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ray = ray_folder()
        self._numbers = itertools.count()

    def __enter__(self) -> Stage:
        os.environ["FEDRAY_RESULTS"] = str(self._folder)
        experiments = harness.prepare(self._folder, "fedray.studies.flow", "fedray.runtime.server")
        self._experiment = experiments["scaffold"]
        self._ray.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ray.__exit__(*error)

    def run(self, scene: str, count: int, seed: str) -> Kills:
        """Kill up to `count` times under a run."""
        undisturbed = self._undisturbed("run", RUN_WORDS)
        out = self._folder / f"run-{next(self._numbers)}"
        patience = ("faults.start_timeout_s=30",) if scene == NOBODY else ()
        command = harness.run_command(self._experiment, out, [*RUN_WORDS, *patience, *ON_RAY])
        host = Host("run", scene, out, seed, 3 if scene == SPARE else 2, command)
        return host.kill(count, lambda end: self._run_outcome(end, out, undisturbed))

    def sweep(self, scene: str, count: int, seed: str) -> Kills:
        """Kill up to `count` times under a sweep of three trials, of two workers each."""
        undisturbed = [self._undisturbed(f"lr={lr}", (*SWEEP_WORDS, f"lr={lr}")) for lr in RATES]
        home = self._folder / f"sweep-{next(self._numbers)}"
        path = write_sweep(self._folder, self._experiment, {})
        command = sweep_command(path, home, *SWEEP_WORDS)
        host = Host("sweep", scene, home, seed, 5 if scene == SPARE else 4, command)
        return host.kill(count, lambda end: _sweep_outcome(end, home, undisturbed))

    def _undisturbed(self, name: str, words: Sequence[str]) -> Path:
        """Return the folder of the same run in one process; it is made once per name."""
        out = self._folder / f"undisturbed-{name}"
        if not out.exists():
            command = harness.run_command(self._experiment, out, [*words, *SERIAL])
            harness.run_undisturbed(command, self._folder / "log")
        return out

    def _run_outcome(self, end: harness.End, out: Path, undisturbed: Path) -> str:
        outcome = "identical"
        if not end.fault and end.code == 1 and "--resume" in end.errors:
            outcome = "one sentence, identical after --resume"
            command = harness.run_command(self._experiment, out, [*RUN_WORDS, *SERIAL])
            end = Victim(command, self._folder / "log").end()
        wrong = defect(end, out, undisturbed)
        return f"WRONG: {out}: {wrong}" if wrong else outcome


def _sweep_outcome(end: harness.End, home: Path, undisturbed: Sequence[Path]) -> str:
    wrong = end.fault or (end.errors if end.code else "")
    for number, alone in enumerate(undisturbed):
        runs = [
            path
            for path in find_run_folders([home])
            if RunFolder(path).read_head().config["lr"] == RATES[number]
        ]
        wrong = wrong or (harness.difference(runs[0], alone) if runs else f"no trial {number}")
    return f"WRONG: {home}: {wrong}" if wrong else "identical"


@dataclass
class Host:
    """A command on a cluster of its own, whose nodes die.

    Attributes:
        what: "run" or "sweep".
        scene: what is killed, and what takes its place.
        out: the new folder of the results.
        seed: of the moments and nodes.
        nodes: number of nodes of one CPU each, besides the head.
        command: runs on the cluster; returns the exit code.
    """

    what: str
    scene: str
    out: Path
    seed: str
    nodes: int
    command: Callable[[], int]

    def kill(self, count: int, outcome: Callable[[harness.End], str]) -> Kills:
        """Kill up to `count` times while the command runs; once if the scene ends the command.

        Args:
            count: the most kills.
            outcome: judges the end of the command.
        """
        count = count if self.scene in REPEATED else 1
        host = Victim(lambda: self._work(count), self.out.with_suffix(".log"))
        end, left = host.wait(LIMIT_SECONDS), descendants(host.pid)
        if end is None:
            end = host.end_or_kill(0)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        verdict = outcome(replace(end, errors=_without_warnings(end.errors)))
        if remaining := still_running(left):
            verdict = f"WRONG: left over: {remaining}"
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        if not lines:
            raise RuntimeError(f"the {self.what} ended before a kill: {verdict}\n{end.errors}")
        if verdict.startswith("WRONG"):
            verdict += f"\n{end.errors}"
        else:
            shutil.rmtree(self.out, ignore_errors=True)
        return verdict, [float(line) for line in lines]

    @property
    def _record(self) -> Path:
        return self.out.with_suffix(".killed")

    def _work(self, count: int) -> int:
        """Start a cluster, run the command on it and kill meanwhile; return its exit code."""
        import ray
        from ray.cluster_utils import Cluster

        # Without Ray's signal handlers, which a thread that adds a node must not set.
        cluster = Cluster(initialize_head=True, head_node_args=HEAD, shutdown_at_exit=False)
        nodes = [_add_node(cluster) for _ in range(self.nodes)]
        os.environ["RAY_ADDRESS"] = cluster.address
        is_over = threading.Event()
        work = (cluster, nodes, count, is_over)
        killer = threading.Thread(target=self._disturb, args=work, daemon=True)
        killer.start()
        try:
            return self.command()
        finally:
            is_over.set()
            killer.join(30)  # it may be about to record a kill that ended the command
            ray.shutdown()
            cluster.shutdown()

    def _disturb(
        self, cluster: Any, nodes: list[Any], count: int, is_over: threading.Event
    ) -> None:
        """Kill at random moments while the command has running runs; record the recovery."""
        moments = random.Random(self.seed)
        for _ in range(count):
            while not _running(self.out) and not is_over.is_set():
                time.sleep(0.1)
            if is_over.wait(moments.uniform(0.2, 4.0)):
                return
            before, at = _running(self.out), time.monotonic()
            self._kill_once(cluster, nodes, moments)
            recovery = _recovered(self.out, before, is_over) - at
            with self._record.open("a") as file:
                file.write(f"{recovery}\n")

    def _kill_once(self, cluster: Any, nodes: list[Any], moments: random.Random) -> None:
        if self.scene == WORKERS:
            for process in actors(os.getpid(), WORKER):
                with suppress(psutil.Error):
                    process.kill()
            return
        victims = [*nodes] if self.scene in (ALL, NOBODY) else [moments.choice(nodes)]
        for victim in victims:
            nodes.remove(victim)
            cluster.remove_node(victim, allow_graceful=False)
        if self.scene in (NONE, NOBODY):
            return
        if self.scene != SPARE:
            time.sleep(moments.uniform(1.0, 10.0))
        nodes += [_add_node(cluster) for _ in victims]


def _running(out: Path) -> dict[Path, int]:
    """Return the rounds done by each unfinished run below a folder that has a checkpoint."""
    rounds = {}
    for path in out.rglob("rounds.jsonl"):
        if (path.parent / "states").exists():
            with suppress(OSError):
                rounds[path] = path.read_bytes().count(b"\n")
    return rounds


def _recovered(out: Path, before: dict[Path, int], is_over: threading.Event) -> float:
    """Return the `time.monotonic` at which every run has done two more rounds or is over.

    It is infinite if that does not happen within `RECOVERY_SECONDS`.
    """
    until = time.monotonic() + RECOVERY_SECONDS
    while True:
        is_last = is_over.is_set() or time.monotonic() > until
        now = _running(out)
        if all(now.get(path, math.inf) >= rounds + 2 for path, rounds in before.items()):
            return time.monotonic()
        if is_last:
            return math.inf
        time.sleep(0.05)


def _without_warnings(errors: str) -> str:
    """Remove the warning that a run goes on with fewer workers."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("a worker found no place"))


def _add_node(cluster: Any) -> Any:
    """Add a node of one CPU with its own address on the loopback."""
    return cluster.add_node(num_cpus=1, node_ip_address=f"127.0.1.{next(_numbers)}")
