"""The driver of a sweep dies: SIGKILL at random moments, then `--resume`, again and again.

At once, while the trials that it left on Ray are still ending.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.folders import difference
from benchmarks.faults.kills import prepare
from benchmarks.faults.processes import below, ray_folder, still_there
from benchmarks.faults.tally import Tally
from benchmarks.faults.victims import Victim, import_all
from fedray.records import find_runs

FAULT = "sweep's driver killed, then --resume"
LIMIT_SECONDS = 1800.0
PER_RUN = 4
OUTCOMES = ("config", "status", "objective", "std", "best_rounds", "final", "last_round", "bytes")
"""What a trial's entry in sweep.json says of its numbers."""

CONCLUDED = ("trials.csv", "best.yaml", "sweep.png", "sweep.yaml")
"""What a sweep that has come to its end leaves beside sweep.json."""


def run(count: int, seed: int, folder: Path) -> Tally:
    """Kill the driver of small sweeps `count` times."""
    import_all("fedray.sweep.command", "fedray.runtime.server")
    os.environ["FEDRAY_CACHE"] = str(folder / "cache")
    moments = random.Random(seed)
    sweep = _write(folder, prepare(folder)["scaffold"])
    tally = Tally()
    with ray_folder():
        began = time.monotonic()
        end = _start(sweep, folder / "undisturbed", folder).wait(LIMIT_SECONDS)
        if end is None or end.code != 0:
            raise RuntimeError(f"the sweep does not run undisturbed: {end}")
        seconds = time.monotonic() - began
        number = 0
        while tally.count < count:
            most = min(PER_RUN, count - tally.count)
            tally += _one_sweep(sweep, folder, folder / f"sweep-{number}", most, seconds, moments)
            tally.say()
            number += 1
    return tally


def _write(folder: Path, experiment: Path) -> Path:
    """A sweep of three trials over an experiment of two clients' workers."""
    settings = {"workers": 1, "cpus": 0.5, "rounds": 8}
    sweep = {
        "answers": "does a killed sweep lose or change anything?",
        "search": "grid",
        "space": {"lr": {"grid": [0.02, 0.05, 0.1]}},
        "scales": {"laptop": {"experiment": str(experiment), "set": settings}},
    }
    path = folder / "small_sweep.yaml"
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return path


def _start(sweep: Path, home: Path, folder: Path) -> Victim:
    resumes = ["--resume"] if (home / "sweep.json").exists() else []
    words = [str(sweep), *resumes, "--out", str(home), "--no-track"]

    def work() -> int:
        from fedray.sweep import command

        return command.main(words)

    return Victim(work, folder / "sweep.log")


def _one_sweep(
    sweep: Path, folder: Path, home: Path, most: int, seconds: float, moments: random.Random
) -> Tally:
    """Kill one sweep's driver up to `most` times, let it end, give what came of it."""
    tally, kills, wrong = Tally(), 0, ""
    while kills < most and not wrong:
        driver = _start(sweep, home, folder)
        if driver.wait(moments.uniform(0.2 * seconds, seconds)) is not None:
            break
        left = below(driver.pid)
        driver.kill()
        driver.end()
        kills += 1
        remaining = still_there(left) if moments.random() < 0.5 else []
        wrong = f"left by a killed driver: {remaining}" if remaining else ""
    end = driver.wait(0.1)
    if end is None or end.was_killed:
        driver = _start(sweep, home, folder)
        end = driver.wait(LIMIT_SECONDS)
    if end is None:
        driver.kill()
        wrong = wrong or "the sweep has not ended"
    else:
        is_over = end.code == 2 and "is finished" in end.errors  # killed after its last word
        wrong = wrong or end.fault or (end.code and not is_over and end.errors) or ""
    wrong = wrong or _difference(home, folder / "undisturbed")
    for _ in range(kills):
        if wrong:
            tally.add_wrong(FAULT, f"{home}: {wrong}")
            wrong = ""
        else:
            tally.add(FAULT, "identical")
    shutil.rmtree(home, ignore_errors=True)
    return tally


def _difference(home: Path, undisturbed: Path) -> str:
    """What distinguishes a sweep from the undisturbed one."""
    if _trials(home) != _trials(undisturbed):
        return f"sweep.json: {_trials(home)}, undisturbed {_trials(undisturbed)}"
    missing = [name for name in CONCLUDED if not (home / name).is_file()]
    if missing:
        return f"not concluded: {missing}"
    for path, _ in find_runs([undisturbed]):
        name = path.relative_to(undisturbed.resolve())
        found = difference(home / name, path)
        if found:
            return f"{name}: {found}"
    return ""


def _trials(home: Path) -> list[dict[str, Any]]:
    """What sweep.json says of every trial's numbers."""
    trials = json.loads((home / "sweep.json").read_text())["trials"]
    entries = trials.values() if isinstance(trials, dict) else trials
    return [{key: entry.get(key) for key in OUTCOMES} for entry in entries]
