"""The table of `columns`, and means over data sets, of a sweep's trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.compare.labels import config_label
from fedray.compare.means import PARTS, of_means, over_columns
from fedray.compare.paired import Interval
from fedray.files import write_rows
from fedray.records import Metric
from fedray.render.page import Section
from fedray.render.sweep import means_section
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import seed_folders
from fedray.sweep.show import declared
from fedray.sweep.spec import Config

HM, CM = "hm_of_means", "cm_of_means"


@dataclass(frozen=True)
class MeanRow:
    """One configuration, over the values of `mean_over`.

    Attributes:
        config: the other keys' values.
        trials: the finished trials that it is the mean of.
        values: by metric, the objective's first; without metrics that a trial lacks.
        missing: the values of `mean_over` without a finished trial.
    """

    config: Config
    trials: Sequence[Trial]
    values: dict[str, Interval]
    missing: Sequence[str] = ()


def mean_rows(ledger: Ledger) -> list[MeanRow]:
    """Return the means of every configuration, in the order of the grid."""
    import pandas

    plan = ledger.plan
    over = next((axis for axis in plan.axes if axis.key == plan.mean_over), None)
    keys = () if over is None else over.keys
    columns = [""] if over is None else [config_label(config) for config in over.configs]
    members: dict[str, list[Trial]] = {}
    for trial in ledger.ordered:
        members.setdefault(json.dumps(_rest(trial.config, keys), sort_keys=True), []).append(trial)
    rows, lines = [], []
    for row, trials in members.items():
        done = [trial for trial in trials if trial in ledger.through and trial.is_over]
        labels = [config_label({key: trial.config[key] for key in keys}) for trial in done]
        for column, trial in zip(labels, done, strict=True):
            lines += [{"row": row, "column": column, **seed} for seed in _by_seed(ledger, trial)]
        missing = [column for column in columns if column not in labels]
        rows.append((row, MeanRow(_rest(trials[0].config, keys), done, {}, missing)))
    numbers = pandas.DataFrame(lines, columns=None if lines else ["row", "column", "seed"])
    names = dict.fromkeys([plan.objective, plan.metric, *plan.columns])
    means = {name: over_columns(numbers, name, columns) for name in names}
    if all(means.get(name) for name in PARTS):
        means[HM] = of_means(numbers, "accuracy_hm", columns)
        means[CM] = of_means(numbers, "accuracy_cm", columns)
    for row, mean in rows:
        mean.values.update({name: of[row] for name, of in means.items() if row in of})
    return [mean for _, mean in rows]


def best_row(ledger: Ledger) -> MeanRow | None:
    """Return the configuration of the best mean, of those that lack no data set."""
    plan = ledger.plan
    sign = 1 if plan.mode == "max" else -1
    if plan.select == "nothing":
        return None
    whole = [row for row in mean_rows(ledger) if plan.objective in row.values]
    return max(whole, key=lambda row: sign * row.values[plan.objective].mean, default=None)


def _rest(config: Config, over: Sequence[str]) -> Config:
    return {key: value for key, value in config.items() if key not in over}


def _by_seed(ledger: Ledger, trial: Trial) -> list[Mapping[str, Any]]:
    """Return a trial's metrics for each seed, in the round of its objective.

    A seed that stopped before that round stays as it was in its last one.
    """
    plan = ledger.plan
    folders = seed_folders(ledger.home / trial.name, plan.seeds)
    metrics: list[Mapping[str, Any]] = []
    for seed, folder, round_ in zip(plan.seeds, folders, trial.best_rounds, strict=True):
        until = [done.metrics for done in folder.rounds() if done.round <= round_]
        metrics.append({"seed": seed, **(until[-1] if until else {})})
    return metrics


def means_table(ledger: Ledger) -> Section:
    """Return the table of means; the best configuration has a star."""
    rows, best = mean_rows(ledger), best_row(ledger)
    labels = [config_label(row.config) for row in rows]
    metrics = {
        name: Metric(name) if name in (HM, CM) else declared(ledger, name)
        for row in rows
        for name in row.values
    }
    return means_section(
        {label: row.values for label, row in zip(labels, rows, strict=True)},
        metrics,
        None if best is None or ledger.plan.mean_over is None else config_label(best.config),
        ledger.plan.mean_over,
        {label: row.missing for label, row in zip(labels, rows, strict=True)},
    )


def write_means(ledger: Ledger, path: Path) -> None:
    """Write the table of means, with how many trials each mean is of."""
    rows = mean_rows(ledger)
    keys = list(dict.fromkeys(key for row in rows for key in row.config))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    lines: list[list[Any]] = [[*keys, "trials", *names]]
    for row in rows:
        values = [row.values[name].mean if name in row.values else "" for name in names]
        lines.append([*(row.config.get(key) for key in keys), len(row.trials), *values])
    write_rows(path, lines)
