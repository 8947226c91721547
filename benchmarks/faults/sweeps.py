"""Kill the driver of a sweep with SIGKILL at random moments, and give the command again.

The command is given again at once, while the trials that the driver left on Ray are still ending.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import descendants, ray_folder, still_running
from benchmarks.faults.harness import Tally, Victim, difference, prepare, run_undisturbed
from fedray.storage.run_folder import find_run_folders

FAULT = "sweep's driver killed, then the same command"
LIMIT_SECONDS = 1800.0
PER_RUN = 4
CONCLUDED = ("trials.csv", "best.yaml", "sweep.png", "sweep.yaml")
"""Files that a finished sweep leaves beside plan.json."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill the driver of small sweeps `count` times."""
    experiments = prepare(folder, "fedray.studies.flow", "fedray.runtime.server")
    settings = {"workers": 1, "cpus": 0.5, "rounds": 8}
    sweep = write_sweep(folder, experiments["scaffold"], settings)
    moments, tally, number = random.Random(seed), Tally(), 0
    with ray_folder():
        command = sweep_command(sweep, folder / "undisturbed")
        seconds = run_undisturbed(command, folder / "sweep.log", LIMIT_SECONDS)
        while tally.count < count:
            most = min(PER_RUN, count - tally.count)
            tally += _one_sweep(sweep, folder / f"sweep-{number}", most, seconds, moments)
            tally.print_progress()
            number += 1
    return tally


def write_sweep(folder: Path, experiment: Path, settings: dict[str, Any]) -> Path:
    """Write a sweep of three trials over the learning rate of an experiment."""
    sweep = {
        "answers": "does a killed sweep lose or change anything?",
        "space": {"lr": {"grid": [0.02, 0.05, 0.1]}},
        "scales": {"laptop": {"experiment": str(experiment), "set": settings}},
    }
    path = folder / "small_sweep.yaml"
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return path


def sweep_command(sweep: Path, home: Path, *words: str) -> Callable[[], int]:
    """Return a function that runs a sweep in the folder `home`, or goes on with it."""

    def work() -> int:
        from fedray.sweep import main

        os.environ["FEDRAY_RESULTS"] = str(results_of(home))  # else it finds the other's runs
        return main([str(sweep), *words, "--out", str(home), "--no-track"])

    return work


def _one_sweep(sweep: Path, home: Path, most: int, seconds: float, moments: random.Random) -> Tally:
    """Kill a sweep's driver up to `most` times, wait for the end, return the outcomes."""
    kills, wrong, log = 0, "", home.parent / "sweep.log"
    while kills < most and not wrong:
        driver = Victim(sweep_command(sweep, home), log)
        if driver.wait(moments.uniform(0.2 * seconds, seconds)) is not None:
            break
        left = descendants(driver.pid)
        driver.kill()
        kills += 1
        remaining = still_running(left) if moments.random() < 0.5 else []
        wrong = f"left by a killed driver: {remaining}" if remaining else ""
    end = driver.wait(0.1)
    if end is None or end.was_killed:
        driver = Victim(sweep_command(sweep, home), log)
        end = driver.wait(LIMIT_SECONDS)
    if end is None:
        driver.kill()
        wrong = wrong or "the sweep has not ended"
    else:
        wrong = wrong or end.fault or (end.code and end.errors) or ""
    wrong = wrong or _sweep_difference(home, home.parent / "undisturbed")
    tally = Tally()
    tally.add([FAULT] * kills, "identical", wrong and f"{home}: {wrong}")
    shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(results_of(home), ignore_errors=True)
    return tally


def results_of(home: Path) -> Path:
    """Return the folder of a sweep's results, with runs of its own."""
    return home.with_name(f"{home.name}-results")


def runs_of(home: Path) -> list[Path]:
    """Return the runs of a sweep, in the order of its configurations."""
    os.environ["FEDRAY_RESULTS"] = str(results_of(home))  # whose store the sweep may name
    return find_run_folders([home])


def _sweep_difference(home: Path, undisturbed: Path) -> str:
    """Return what distinguishes a sweep from the undisturbed one; "" for nothing."""
    missing = [name for name in CONCLUDED if not (home / name).is_file()]
    if missing:
        return f"not concluded: {missing}"
    if (home / "best.yaml").read_text() != (undisturbed / "best.yaml").read_text():
        return "another best.yaml"
    mine, theirs = runs_of(home), runs_of(undisturbed)
    if [path.name for path in mine] != [path.name for path in theirs]:
        return f"runs {mine}, undisturbed {theirs}"
    for path, other in zip(mine, theirs, strict=True):
        if text := difference(path, other):
            return f"{path}: {text}"
    return ""
