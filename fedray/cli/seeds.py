"""One experiment with several seeds: `seed=0,1,2` of `fedray run`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedray.compare.paired import t_interval
from fedray.errors import UserError, shown
from fedray.records import BEST, Run, RunFolder
from fedray.render.cells import SPREAD

_SEVERAL = re.compile(r"\[?\s*(\d{1,18}(?:\s*,\s*\d{1,18})+)\s*,?\s*\]?")
MOST_SEEDS = 1000


def several_seeds(assignments: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the seeds of `seed=0,1,2` or `seed=[0,1,2]`, and all other assignments.

    Returns:
        No seeds where there is no such assignment; it then is one run's own.

    Raises:
        UserError: when a seed stands twice, or there are two such assignments.
    """
    found = [(text, _SEVERAL.fullmatch(text.removeprefix("seed="))) for text in assignments]
    asked = [match for text, match in found if text.startswith("seed=") and match]
    if not asked:
        return [], list(assignments)
    others = [text for text in assignments if not text.startswith("seed=")]
    if len(others) < len(assignments) - 1:
        raise UserError("seed= stands twice; give all seeds in one, for example seed=0,1,2")
    seeds = [int(text) for text in asked[0][1].split(",")]
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        raise UserError(
            f"seed={shown(asked[0][1])}: expected different seeds, at most {MOST_SEEDS}"
        )
    return seeds, others


def seed_folder(home: Path, seed: int) -> Path:
    """Return the folder of one seed's run."""
    return home / f"seed_{seed}"


def summary(runs: Sequence[Run], home: Path) -> Iterator[str]:
    """Yield the mean over seeds of the runs' accuracies, with its interval."""
    seeds = ", ".join(str(run.info.seed) for run in runs)
    final = [run.final.local_accuracy for run in runs if run.final is not None]
    best = [run.best.local_accuracy for run in runs if run.best is not None]
    words = [f"last {_spread(final)}"]
    if len(best) == len(runs):
        words.insert(0, f"{_spread(best)} (each {BEST[runs[0].info.select]})")
    yield ""
    yield f"local accuracy over seeds {seeds}, mean {SPREAD} seeds: {', '.join(words)}"
    yield f"results: {home}, a folder of each seed; compare: fedray report {home}"


def _spread(values: Sequence[float]) -> str:
    interval = t_interval(values)
    return f"{interval.mean:.4f} ± {interval.half:.4f}"


def finished(home: Path, seeds: Sequence[int]) -> list[Run]:
    """Return the runs of all seeds."""
    return [RunFolder(seed_folder(home, seed)).read() for seed in seeds]
