"""Several seeds of one experiment, requested by `fedray run ... seed=0,1,2`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedray.base.errors import UserError, shown
from fedray.results.pages.cells import is_range, spread_label
from fedray.results.paired import t_interval
from fedray.storage.metric import BEST
from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder

_SEVERAL = re.compile(r"\[?\s*(\d{1,18}(?:\s*,\s*\d{1,18})+)\s*,?\s*\]?")
MOST_SEEDS = 1000


def several_seeds(assignments: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the seeds of `seed=0,1,2` or `seed=[0,1,2]`, and all other assignments.

    Returns:
        An empty list and all assignments if there is no list of seeds.

    Raises:
        UserError: if a seed or the assignment is repeated.
    """
    matches = [(text, _SEVERAL.fullmatch(text.removeprefix("seed="))) for text in assignments]
    seed_lists = [match for text, match in matches if text.startswith("seed=") and match]
    if not seed_lists:
        return [], list(assignments)
    remaining = [text for text in assignments if not text.startswith("seed=")]
    if len(remaining) < len(assignments) - 1:
        raise UserError("seed= is set twice; list all seeds together, for example seed=0,1,2")
    seeds = [int(text) for text in seed_lists[0][1].split(",")]
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        raise UserError(
            f"seed={shown(seed_lists[0][1])}: expected different seeds, at most {MOST_SEEDS}"
        )
    return seeds, remaining


def seed_folder(home: Path, seed: int) -> Path:
    """Return the folder of one seed's run."""
    return home / f"seed_{seed}"


def summary(runs: Sequence[Run], home: Path) -> Iterator[str]:
    """Yield lines with the mean accuracy over seeds and its interval, and the folder."""
    seeds = ", ".join(str(run.info.seed) for run in runs)
    final = [run.final.local_accuracy for run in runs if run.final is not None]
    best = [run.best.local_accuracy for run in runs if run.best is not None]
    parts = [f"last {_spread(final)}"]
    if len(best) == len(runs):
        parts.insert(0, f"{_spread(best)} (each {BEST[runs[0].info.select]})")
    yield ""
    how = spread_label([t_interval(final)])
    yield f"local accuracy over seeds {seeds}, {how}: {', '.join(parts)}"
    yield f"results: {home}, one folder per seed; compare: fedray report {home}"


def _spread(values: Sequence[float]) -> str:
    interval = t_interval(values)
    if is_range(interval):
        low, high = interval.spread
        return f"{interval.mean:.4f} ({low:.4f}–{high:.4f})"
    return f"{interval.mean:.4f} ± {interval.half:.4f}"


def finished(home: Path, seeds: Sequence[int]) -> list[Run]:
    """Return the runs of all seeds."""
    return [RunFolder(seed_folder(home, seed)).read() for seed in seeds]
