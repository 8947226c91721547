"""Nodes die: several on this machine, by Ray's own test cluster, on the loopback.

A node takes its workers, perhaps a trial of a sweep, and what they held with it. Another joins at
once, later, or not at all. `python -m benchmarks.nodes` says how long recovery takes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.faults.folders import difference, words_to_go_on
from benchmarks.faults.kills import SERIAL, prepare
from benchmarks.faults.processes import WORKER, actors, below, ray_folder, still_there
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import End, Victim, import_all, run_command
from benchmarks.faults.workers import LIMIT_SECONDS, ON_RAY

HEAD = {"num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False}
"""Ray takes 127.0.0.1 for this machine's outer address; the rest of 127.0.0.0/8 stays inside."""
PER_RUN = 5
SPARE, LATER, NONE = "a spare node", "a node that joins later", "no other node"
ALL, NOBODY = "all nodes, then another", "all nodes, and no other"
WORKERS = "every worker at once"
SCENES = (SPARE, LATER, NONE, ALL, NOBODY)
SURVIVED = (SPARE, LATER, ALL)
"""Scenes in which the run goes on by itself, and can be disturbed again and again."""
RECOVERY_SECONDS = 400.0
_numbers = itertools.count(1)
WORDS = ("workers=2", "cpus=2", "rounds=400", "model.feature_dim=512")
"""States of more than 100 kB, which stay on the node whose worker made them."""
SWEEP_WORDS = ("workers=2", "cpus=2", "rounds=150", "model.feature_dim=512")
RATES = (0.02, 0.05, 0.1)
"""Of the sweep's three trials."""


@dataclass
class Kill:
    """One node, or every worker, killed.

    Attributes:
        what: "run" or "sweep".
        scene: what was killed, and what takes its place.
        at: seconds after the command began.
        rounds: how many rounds were done then, of all trials.
        recovery: seconds until whatever was going had done two more rounds, the first of which may
            have been done already, or was over; infinite when that did not happen.
        outcome: what came of the run in the end; "WRONG: ..." for what must not be.
    """

    what: str
    scene: str
    at: float
    rounds: int
    recovery: float
    outcome: str = ""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill `count` nodes, in one scene after the other; the seed says which is the first."""
    tally = Tally()
    with Stage(folder) as stage:
        for number in itertools.count():
            if tally.count >= count:
                return tally
            scene = SCENES[(seed + number) % len(SCENES)]
            for kill in stage.run(scene, min(PER_RUN, count - tally.count), f"{seed}/{number}"):
                fault = f"node killed, {kill.scene}"
                if kill.outcome.startswith("WRONG"):
                    tally.add_wrong(fault, kill.outcome)
                else:
                    tally.add(fault, kill.outcome)
            tally.say()
    return tally


class Stage:
    """Where nodes are killed under runs and sweeps, each beside its undisturbed twin.

    Args:
        folder: for everything that is written.
        shared: whether FEDRAY_RESULTS says that all nodes share it; otherwise servers are placed on
            the driver's node.
    """

    def __init__(self, folder: Path, *, shared: bool = True) -> None:
        self._folder = folder
        self._shared = shared
        self._ray = ray_folder()
        self._made: dict[str, Path] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Stage:
        import_all("fedray.sweep.command", "fedray.runtime.server")
        os.environ["FEDRAY_CACHE"] = str(self._folder / "cache")
        os.environ.pop("FEDRAY_RESULTS", None)
        if self._shared:
            os.environ["FEDRAY_RESULTS"] = str(self._folder)
        self._experiment = prepare(self._folder)["scaffold"]
        self._ray.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ray.__exit__(*error)

    def run(self, scene: str, count: int, seed: str) -> list[Kill]:
        """Kill up to `count` times under a run; what came of it."""
        undisturbed = self._undisturbed("run", WORDS)
        out = self._folder / f"run-{next(self._numbers)}"
        patience = ("faults.start_timeout_s=30",) if scene == NOBODY else ()
        words = words_to_go_on(self._experiment, out, (*WORDS, *patience))
        nodes = 3 if scene == SPARE else 2
        host = Host("run", scene, out, seed, nodes, run_command([*words, *ON_RAY]))
        return host.kill(count, lambda end: self._run_end(end, out, undisturbed))

    def sweep(self, scene: str, count: int, seed: str) -> list[Kill]:
        """Kill up to `count` times under a sweep; what came of it."""
        undisturbed = [self._undisturbed(f"lr={lr}", (*SWEEP_WORDS, f"lr={lr}")) for lr in RATES]
        home = self._folder / f"sweep-{next(self._numbers)}"
        nodes = 5 if scene == SPARE else 4
        host = Host("sweep", scene, home, seed, nodes, self._sweep_command(home))
        return host.kill(count, lambda end: _sweep_end(end, home, undisturbed))

    def _undisturbed(self, name: str, words: Sequence[str]) -> Path:
        """The same in one process; once."""
        if name not in self._made:
            out = self._folder / f"undisturbed-{name}"
            end = self._serially(out, words)
            if end.code != 0:
                raise RuntimeError(f"{name} does not run undisturbed: {end}")
            self._made[name] = out
        return self._made[name]

    def _serially(self, out: Path, words: Sequence[str]) -> End:
        all_words = words_to_go_on(self._experiment, out, words)
        return Victim(run_command([*all_words, *SERIAL]), self._folder / "log").end()

    def _sweep_command(self, home: Path) -> Callable[[], int]:
        """A sweep of three trials, of two workers each."""
        path = self._folder / "nodes_sweep.yaml"
        sweep = {
            "answers": "does a node that dies lose or change anything?",
            "search": "grid",
            "space": {"lr": {"grid": [*RATES]}},
            "scales": {"laptop": {"experiment": str(self._experiment)}},
        }
        path.write_text(yaml.safe_dump(sweep), encoding="utf-8")

        def work() -> int:
            from fedray.sweep import command

            return command.main([str(path), *SWEEP_WORDS, "--out", str(home), "--no-track"])

        return work

    def _run_end(self, end: End, out: Path, undisturbed: Path) -> str:
        """What came of a run."""
        outcome = "identical"
        if not end.fault and end.code == 1 and "--resume" in end.errors:
            outcome = "one sentence, identical after --resume"
            end = self._serially(out, WORDS)
        wrong = end.fault or (end.errors if end.code else difference(out, undisturbed))
        return f"WRONG: {out}: {wrong}" if wrong else outcome


def _sweep_end(end: End, home: Path, undisturbed: Sequence[Path]) -> str:
    """What came of a sweep."""
    wrong = end.fault or (end.errors if end.code else "")
    for number, alone in enumerate(undisturbed):
        found = [*home.glob(f"trial_{number:05d}_*/seed_0")]
        wrong = wrong or (difference(found[0], alone) if found else f"no trial {number}")
    return f"WRONG: {home}: {wrong}" if wrong else "identical"


@dataclass
class Host:
    """A command on a cluster of its own, whose nodes die.

    Attributes:
        what: "run" or "sweep".
        scene: what is killed, and what takes its place.
        out: the folder of the results, which does not exist yet.
        seed: of the moments and nodes.
        nodes: how many there are, of one CPU each, beside the head.
        command: what runs on it.
    """

    what: str
    scene: str
    out: Path
    seed: str
    nodes: int
    command: Callable[[], int]

    def kill(self, count: int, outcome: Callable[[End], str]) -> list[Kill]:
        """Kill up to `count` times while the command runs.

        Args:
            count: how often, where the scene can be repeated.
            outcome: says what came of it.
        """
        count = count if self.scene in (*SURVIVED, WORKERS) else 1
        host = Victim(lambda: self._work(count), self.out.with_suffix(".log"))
        end, left = host.wait(LIMIT_SECONDS), below(host.pid)
        if end is None:
            host.kill()
            end = host.end()
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        came = outcome(replace(end, errors=_without_warnings(end.errors)))
        if remaining := still_there(left):
            came = f"WRONG: left over: {remaining}"
        kills = self._killed()
        if not kills:
            raise RuntimeError(f"the {self.what} ended before a kill: {came}\n{end.errors}")
        if came.startswith("WRONG"):
            came += f"\n{end.errors}"
        else:
            shutil.rmtree(self.out, ignore_errors=True)
        return [replace(kill, outcome=came) for kill in kills]

    @property
    def _record(self) -> Path:
        return self.out.with_suffix(".killed")

    def _killed(self) -> list[Kill]:
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        return [Kill(**json.loads(line)) for line in lines]

    def _work(self, count: int) -> int:
        """Start a cluster, run the command on it, kill meanwhile; the command's exit code."""
        import ray
        from ray.cluster_utils import Cluster

        # without its handlers of signals, which a thread that adds a node must not set
        cluster = Cluster(initialize_head=True, head_node_args=HEAD, shutdown_at_exit=False)
        nodes = [_node(cluster) for _ in range(self.nodes)]
        os.environ["RAY_ADDRESS"] = cluster.address
        is_over = threading.Event()
        work = (cluster, nodes, count, is_over)
        killer = threading.Thread(target=self._disturb, args=work, daemon=True)
        killer.start()
        try:
            return self.command()
        finally:
            is_over.set()
            killer.join(30)  # it may be about to write down a kill that ended the command
            ray.shutdown()
            cluster.shutdown()

    def _disturb(
        self, cluster: Any, nodes: list[Any], count: int, is_over: threading.Event
    ) -> None:
        """Kill at random moments, once the command is under way; note how long recovery took."""
        moments, began = random.Random(self.seed), time.monotonic()
        for _ in range(count):
            while not _going(self.out) and not is_over.is_set():
                time.sleep(0.1)
            if is_over.wait(moments.uniform(0.2, 4.0)):
                return
            before, at = _going(self.out), time.monotonic()
            kill = Kill(self.what, self.scene, at - began, _rounds_of(self.out), math.inf)
            self._kill_once(cluster, nodes, moments)
            with suppress(TimeoutError):
                kill.recovery = _recovered(self.out, before, is_over) - at
            with self._record.open("a") as file:
                file.write(json.dumps(asdict(kill)) + "\n")

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
        nodes += [_node(cluster) for _ in victims]


def _going(out: Path) -> dict[Path, int]:
    """How many rounds each run below a folder has done that has a checkpoint and is not over."""
    found = {}
    for path in out.rglob("rounds.jsonl"):
        if (path.parent / "checkpoints").exists():
            with suppress(OSError):
                found[path] = path.read_bytes().count(b"\n")
    return found


def _rounds_of(out: Path) -> int:
    """The rounds that were done, those of ended runs left out."""
    return sum(_going(out).values())


def _recovered(out: Path, before: dict[Path, int], is_over: threading.Event) -> float:
    """When whatever was going has done two more rounds, or is over; of `time.monotonic`.

    Raises:
        TimeoutError: when that does not happen.
    """
    until = time.monotonic() + RECOVERY_SECONDS
    while True:
        is_last = is_over.is_set() or time.monotonic() > until
        now = _going(out)
        if all(now.get(path, math.inf) >= rounds + 2 for path, rounds in before.items()):
            return time.monotonic()
        if is_last:
            raise TimeoutError
        time.sleep(0.05)


def _without_warnings(errors: str) -> str:
    """What a run wrote to stderr, but that it goes on with fewer workers."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("a worker found no place"))


def _node(cluster: Any) -> Any:
    """One more node of one CPU, with an address of its own on the loopback."""
    return cluster.add_node(num_cpus=1, node_ip_address=f"127.0.1.{next(_numbers)}")


def table(kills: Sequence[Kill]) -> str:
    """A Markdown table of kills."""
    lines = [
        "| | killed | in | after (s) | rounds done | recovered in (s) | results |",
        "|---:|---|---|---:|---:|---:|---|",
    ]
    for number, kill in enumerate(kills, 1):
        outcome = kill.outcome.partition("\n")[0]
        lines.append(
            f"| {number} | {kill.scene} | {kill.what} | {kill.at:.1f} | {kill.rounds} | "
            f"{kill.recovery:.1f} | {outcome} |"
        )
    return "\n".join(lines)
