"""The anchor task, beside pfl-research's own code and Flower's simulation.

The task is pfl-research's first benchmark (apple/pfl-research,
benchmarks/image_classification/configs/baseline.yaml): 1,000 clients of 50 images of 32x32x3, 50
clients a round, one epoch in batches of 10, SGD, a CNN of 1.6 million numbers with dropout. Images
are noise, since only time counts.

    python -m benchmarks.anchor
    python -m benchmarks.anchor --pfl CHECKOUT PYTHON --flower PYTHON --turns 3

CHECKOUT is a copy of their repository, PYTHON an interpreter with `pfl` and `torch`, or with
`flwr[simulation]` and `torch`. All take turns, with one thread a process. Printed are medians over
turns: processor and wall seconds of a round, clients and optimiser steps per second of wall time,
and the ratio of wall times to fedray's in one process.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks import common, gpu, overhead
from benchmarks.common import Child

CLIENTS, STEPS = 50, 250  # of a round
ROUNDS = 5  # timed, in each turn
TASK = replace(gpu.ANCHOR, threads=1)
FLOWER = Path(__file__).with_name("anchor_flower.py")


class Round(NamedTuple):
    """Seconds of a round: of all processors together (NaN if unknown), and by the clock."""

    processor: float
    wall: float


def ours(mode: str, root: Path) -> Callable[[], Round]:
    """Start fedray's process; return a function that runs `ROUNDS` rounds."""
    overhead.WORKLOADS["anchor"] = TASK
    overhead.make_images(TASK, root)
    words = ["-m", "benchmarks.anchor", "--serve", mode, str(root)]
    child = Child(mode, words, root / f"{mode}.log")
    child.ask("round")

    def rounds() -> Round:
        before = processor_seconds(child.pid)
        wall = sum(child.ask("round")["seconds"] for _ in range(ROUNDS))
        return Round((processor_seconds(child.pid) - before) / ROUNDS, wall / ROUNDS)

    return rounds


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all below it."""
    times = [p.cpu_times() for p in (psutil.Process(pid), *common.descendants(pid))]
    return sum(each.user + each.system for each in times)


def theirs(checkout: Path, python: str, root: Path) -> Callable[[], Round]:
    """Return a function that runs pfl-research's training; its first round is not counted."""
    random = np.random.default_rng(0)
    for name, count in (("train", 50_000), ("test", 1_000)):
        images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        with (root / f"cifar10_{name}.p").open("wb") as file:
            pickle.dump((images, random.integers(0, 10, (count, 1))), file)
    folder = checkout / "benchmarks"
    config = "image_classification/configs/baseline.yaml"
    words = [python, "image_classification/pytorch/train.py", "--args_config", config]
    words += ["--data_path", str(root), "--evaluation_frequency", "100000"]

    def run(rounds: int) -> tuple[float, str]:
        before = os.times()
        done = subprocess.run(
            [*words, "--central_num_iterations", str(rounds)],
            cwd=folder, env={**common.environment(), "PYTHONPATH": str(folder)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        after = os.times()
        spent = sum(after[2:4]) - sum(before[2:4])
        return spent, done.stdout + done.stderr

    def rounds() -> Round:
        first, _ = run(1)
        spent, text = run(1 + ROUNDS)
        seconds = re.findall(r"^\s*Duration of iteration \(s\)\s*: ([\d.]+)", text, re.MULTILINE)
        return Round((spent - first) / ROUNDS, statistics.mean(map(float, seconds[1:])))

    return rounds


def flower(python: str) -> Callable[[], Round]:
    """Return a function that runs Flower's simulation; its first round is not counted."""

    def rounds() -> Round:
        done = subprocess.run(
            [python, str(FLOWER), str(1 + ROUNDS)],
            env=common.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = re.findall(r"^round took ([\d.]+)", done.stdout, re.MULTILINE)
        return Round(math.nan, statistics.mean(map(float, seconds[1:])))

    return rounds


def print_table(found: dict[str, list[Round]]) -> None:
    """Print the medians of each code, and the median ratio of wall times in the same turn."""
    print("| code | processor s | wall s | clients/s | steps/s | wall, to fedray's |")
    print("|:--|--:|--:|--:|--:|--:|")
    base = next(iter(found.values()))
    for name, turns in found.items():
        spent, wall = (statistics.median(turn[part] for turn in turns) for part in (0, 1))
        ratio = statistics.median(t.wall / b.wall for t, b in zip(turns, base, strict=True))
        rates = f"{CLIENTS / wall:.1f} | {STEPS / wall:.0f}"
        print(f"| {name} | {spent:.2f} | {wall:.2f} | {rates} | {ratio:.2f} |")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or serve rounds to the process that measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pfl", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--flower", metavar="PYTHON")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.serve:
        overhead.WORKLOADS["anchor"] = TASK
        overhead.serve_rounds("anchor", given.serve[0], Path(given.serve[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        codes = {"fedray, one process": ours("serial", root)}
        codes["fedray, Ray, two workers"] = ours("ray", root)
        if given.pfl:
            codes["pfl-research"] = theirs(Path(given.pfl[0]), given.pfl[1], root)
        if given.flower:
            codes["Flower, Ray"] = flower(given.flower)
        found: dict[str, list[Round]] = {name: [] for name in codes}
        for _ in range(given.turns):
            for name, rounds in codes.items():
                found[name].append(rounds())
        print_table(found)


if __name__ == "__main__":
    main()
