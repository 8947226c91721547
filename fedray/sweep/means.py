"""The table of `columns`, and means over data sets: what the papers' ablations report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedray.evaluation.measures import harmonic_mean
from fedray.files import write_rows
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import seed_folders
from fedray.sweep.spec import Config, SweepPlan, words

OF_MEANS = ("hm_of_means", "cm_of_means")
"""HM and CM of the means over data sets, seed by seed as in a report, then the mean over seeds."""
PARTS = ("local_accuracy", "accuracy_base", "accuracy_novel")


@dataclass(frozen=True)
class MeanRow:
    """One configuration, over the values of `mean_over`.

    Attributes:
        config: the other keys' values.
        trials: the trials it is the mean of.
        values: by metric, the objective's first; without those that a trial lacks.
        missing: the values of `mean_over` that were not tried, or that no trial came through with.
    """

    config: Config
    trials: Sequence[Trial]
    values: dict[str, float]
    missing: Sequence[str] = ()


def mean_rows(ledger: Ledger) -> list[MeanRow]:
    """The means of every configuration, in the order of the grid."""
    plan = ledger.plan
    over, wanted = _keys_over(plan), _values_over(plan)
    members: dict[str, list[Trial]] = {}
    for trial in ledger.ordered:
        rest = json.dumps(_rest(trial.config, over), sort_keys=True)  # `words` may cut
        members.setdefault(rest, []).append(trial)
    rows = []
    for trials in members.values():
        done = [t for t in ledger.through if t.is_over and t in trials]
        there = [{key: trial.config[key] for key in over} for trial in done]
        missing = [words(config) for config in wanted if config not in there]
        rows.append(MeanRow(_rest(trials[0].config, over), done, _means(ledger, done), missing))
    return rows


def best_row(ledger: Ledger) -> MeanRow | None:
    """The configuration of the best mean; those that lack a data set do not count."""
    plan = ledger.plan
    sign = 1 if plan.mode == "max" else -1
    if plan.select == "nothing":
        return None
    whole = [row for row in mean_rows(ledger) if not row.missing and plan.objective in row.values]
    return max(whole, key=lambda row: sign * row.values[plan.objective], default=None)


def _keys_over(plan: SweepPlan) -> tuple[str, ...]:
    """The keys that are averaged over; none where every configuration stands for itself."""
    return next((axis.keys for axis in plan.axes if axis.key == plan.mean_over), ())


def _values_over(plan: SweepPlan) -> list[Config]:
    """What is averaged over, value by value."""
    return next((axis.configs for axis in plan.axes if axis.key == plan.mean_over), [])


def _rest(config: Config, over: Sequence[str]) -> Config:
    return {key: value for key, value in config.items() if key not in over}


def _means(ledger: Ledger, trials: Sequence[Trial]) -> dict[str, float]:
    """The mean over trials of each metric, in the round of the objective."""
    plan = ledger.plan
    names = list(dict.fromkeys([plan.objective, plan.metric, *plan.columns]))
    by_seed = [_by_seed(ledger, trial) for trial in trials]
    found = [_over_seeds(each) for each in by_seed]
    values = {
        name: sum(each[name] for each in found) / len(found)
        for name in names
        if found and all(name in each for each in found)
    }
    if all(name in values for name in PARTS):
        every = [_hm_and_cm(each) for each in zip(*by_seed, strict=True)]
        values |= dict(zip(OF_MEANS, map(fmean, zip(*every, strict=True)), strict=True))
    return values


def _hm_and_cm(trials: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return HM and CM of the means over the trials of one seed."""
    local, base, novel = (fmean(trial[name] for trial in trials) for name in PARTS)
    hm = harmonic_mean(base, novel)
    return hm, (local + hm) / 2


def _by_seed(ledger: Ledger, trial: Trial) -> list[Mapping[str, float]]:
    """Return a trial's metrics for each seed, in the round of its objective.

    A seed that stopped before that round stays as it was in its last one.
    """
    plan = ledger.plan
    folders = seed_folders(ledger.home / trial.name, plan.seeds)
    metrics: list[Mapping[str, float]] = []
    for folder, round_ in zip(folders, trial.best_rounds, strict=True):
        until = [done.metrics for done in folder.rounds() if done.round <= round_]
        metrics.append(until[-1] if until else {})
    return metrics


def _over_seeds(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over seeds of the metrics that all seeds have."""
    names = set.intersection(*(set(each) for each in metrics)) if metrics else set()
    return {name: sum(each[name] for each in metrics) / len(metrics) for name in names}


def means_table(ledger: Ledger) -> list[str]:
    """The table of means, line by line; the best configuration has a star."""
    rows, best = mean_rows(ledger), best_row(ledger)
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    over = ledger.plan.mean_over
    texts = [[f"mean over {over}" if over else "configuration", *names]]
    for row in rows:
        star = "* " if best is not None and row.config == best.config else ""
        cells = [f"{row.values[name]:.4f}" if name in row.values else "" for name in names]
        texts.append([f"{star}{words(row.config)}", *cells])
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    lines = ["  ".join(t.rjust(w) for t, w in zip(line, widths, strict=True)) for line in texts]
    for row in rows:
        if row.missing:
            lines.append(f"{words(row.config)} lacks {', '.join(row.missing)}")
    return lines


def write_means(ledger: Ledger, path: Path) -> None:
    """The table of means for other programs, with how many trials each mean is of."""
    rows = mean_rows(ledger)
    keys = list(dict.fromkeys(key for row in rows for key in row.config))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    lines: list[list[Any]] = [[*keys, "trials", *names]]
    for row in rows:
        values = [row.values.get(name, "") for name in names]
        lines.append([*(row.config.get(key) for key in keys), len(row.trials), *values])
    write_rows(path, lines)
