"""Recovery: nodes, and all workers at once, killed at random moments under runs and sweeps.

    python -m benchmarks.nodes                       20 nodes and 4 times every worker
    python -m benchmarks.nodes --nodes 5 --only run --seed 1

The cluster is several nodes of one CPU on this machine (`benchmarks.faults.nodes`), whose processes
are killed with SIGKILL. For each kill: the moment, the seconds until everything that was going had
done two more rounds, and whether the results are identical, in every number and tensor, with those
of the undisturbed run or sweep. faults.max_failures is left at its default.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.nodes import ALL as ALL_NODES
from benchmarks.faults.nodes import LATER, SPARE, WORKERS, Kill, Stage, table

WHERE = ("run", "sweep")


def plan(nodes: int, workers: int, only: list[str]) -> Iterator[tuple[str, str, int]]:
    """What to kill where: ("run" or "sweep", scene, times), shared out evenly."""
    for kills, scenes in ((nodes, (SPARE, LATER, ALL_NODES)), (workers, (WORKERS,))):
        for index, where in enumerate(only):
            left = kills // len(only) + (index < kills % len(only))
            turn = 0
            while left > 0:
                scene = scenes[turn % len(scenes)]
                times = min(left, 2 if scene == ALL_NODES else 4)
                yield where, scene, times
                left -= times
                turn += 1


def main(argv: list[str] | None = None) -> int:
    """Kill, print the table, write JSON; 1 when anything ended as it must not."""
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.nodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("--nodes", type=int, default=20, help="how many kills of nodes")
    cli.add_argument("--workers", type=int, default=4, help="how many kills of every worker")
    cli.add_argument("--only", nargs="+", choices=WHERE, default=list(WHERE))
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--apart", action="store_true", help="the nodes share no folder of results")
    cli.add_argument("--json", type=Path, default=Path("nodes.json"), metavar="FILE")
    args = cli.parse_args(argv)
    kills: list[Kill] = []
    with (
        tempfile.TemporaryDirectory(prefix="fedray-nodes-") as folder,
        Stage(Path(folder), shared=not args.apart) as stage,
    ):
        for came in _killed(stage, args):
            kills += came
            print(f"  {len(kills)} kills so far", flush=True)
            _write(args.json, args.seed, kills)
    print(table(kills))
    wrong = [kill.outcome for kill in kills if kill.outcome != "identical"]
    recovery = [kill.recovery for kill in kills]
    print(
        f"{len(kills)} kills, {len(wrong)} not identical; recovered in "
        f"{statistics.median(recovery):.1f} s (median), {max(recovery):.1f} s at most"
    )
    for each in dict.fromkeys(wrong):
        print(each, file=sys.stderr)
    return 1 if wrong else 0


def _killed(stage: Stage, args: argparse.Namespace) -> Iterator[list[Kill]]:
    """Kill as often as is asked for; yield what came of each run and sweep."""
    for number, (where, scene, left) in enumerate(plan(args.nodes, args.workers, args.only)):
        asked = stage.run if where == "run" else stage.sweep
        while left > 0:  # it may come to its end before it was killed often enough
            came = asked(scene, left, f"{args.seed}/{number}/{left}")
            left -= len(came)
            yield came


def _write(path: Path, seed: int, kills: list[Kill]) -> None:
    entries = [asdict(kill) for kill in kills]
    for entry in entries:
        entry["recovery"] = entry["recovery"] if math.isfinite(entry["recovery"]) else None
    tree = {"seed": seed, "cores": os.cpu_count(), "kills": entries}
    path.write_text(json.dumps(tree, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
