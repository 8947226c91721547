"""Results of a sweep: its configurations, each the mean over its seeds, and the best one."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedray.compare.labels import config_label
from fedray.compare.means import PARTS, of_means, over_columns
from fedray.compare.paired import Interval
from fedray.config import read_plugins
from fedray.records import Metric
from fedray.studies.cell import DECIMALS
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Config
from fedray.studies.store import Measured
from fedray.studies.study import Status, Study

HM, CM = "hm_of_means", "cm_of_means"
"""HM and CM of the means over data sets, seed by seed as in a report, then the mean over seeds."""


@dataclass(frozen=True)
class Trial:
    """One configuration and what became of it.

    Attributes:
        number: from 0.
        config: the searched keys' values.
        status: pending, running, finished, stopped (by ASHA) or failed.
        measured: the result of each finished seed.
        runs: the folders of all seeds.
        reason: why it failed.
        seconds: of all its runs in this invocation, start-up included.
    """

    number: int
    config: Config
    status: Status
    measured: Mapping[int, Measured]
    runs: Sequence[Path]
    reason: str | None = None
    seconds: float = 0.0

    @property
    def is_over(self) -> bool:
        """Return True if nothing is left to do."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def objective(self) -> float | None:
        """The number that chooses, mean over seeds; None while one is missing."""
        return self._mean([each.choice for each in self.measured.values()])

    @property
    def score(self) -> float | None:
        """Return the value with its sign turned where smaller is better."""
        found = self._mean([each.score for each in self.measured.values()])
        return None if found is None else round(found, DECIMALS)

    @property
    def std(self) -> float:
        """The sample standard deviation of the objective over seeds; 0 for one seed."""
        return _std([each.choice for each in self.measured.values()])

    @property
    def best_rounds(self) -> list[int]:
        """Return the round of the objective of each seed."""
        return [each.round for each in self.measured.values()]

    @property
    def when(self) -> str:
        """The objective's round, or the seeds' first and last one: "9-10"."""
        rounds = self.best_rounds
        return "-".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else ""

    @property
    def bytes(self) -> float:
        """Sent and received by one run, mean over seeds."""
        return self._mean([float(each.bytes) for each in self.measured.values()]) or 0.0

    def values(self, metric: str) -> dict[int, float]:
        """Return a metric by seed, in the round of the objective; of the seeds that have it."""
        found = {seed: each.values.get(metric) for seed, each in self.measured.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, metric: str) -> float | None:
        """Return the mean over seeds of a metric; None while one is missing."""
        return self._mean(list(self.values(metric).values()))

    def spread(self, metric: str) -> float:
        """Return the sample standard deviation over seeds of a metric; 0 for one seed."""
        return _std(list(self.values(metric).values()))

    def _mean(self, values: Sequence[float]) -> float | None:
        return statistics.fmean(values) if values and len(values) == len(self.runs) else None


def _std(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class MeanRow:
    """One configuration, over the values of `mean_over`.

    Attributes:
        config: the other keys' values.
        trials: the trials it is the mean of.
        score: what it is ranked by, larger is better; None if a value was not tried.
        values: by metric, the objective's first; without those that a trial lacks.
        missing: the values of `mean_over` that were not tried, or that no trial came through with.
    """

    config: Config
    trials: Sequence[Trial]
    score: float | None
    values: Mapping[str, Interval]
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class SweepOutcome:
    """A whole sweep.

    Attributes:
        plan: what was asked.
        trials: its configurations, in the order in which they were tried.
        metrics: what its metrics mean, by name.
    """

    plan: StudyPlan
    trials: Sequence[Trial] = field(default_factory=list)
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """Return the first metric."""
        return self.metrics.get(self.plan.metrics[0], Metric(self.plan.metrics[0]))

    @property
    def through(self) -> list[Trial]:
        """The finished trials that have a result."""
        return [t for t in self.trials if t.is_over and t.objective is not None]

    @property
    def best(self) -> Trial | None:
        """The best trial, the first of equals; of the best mean on the first data set.

        None if nothing is chosen.
        """
        plan = self.plan
        if plan.mean_over is not None:
            row = self.best_row
            return None if row is None else row.trials[0]
        ranked = [] if plan.select == "nothing" else self.through
        return max(ranked, key=lambda trial: trial.score or 0.0, default=None)

    @property
    def chooser(self) -> str:
        """The number that chooses."""
        return self.plan.chosen_by(next(iter(self.plan.rows)))

    @cached_property
    def rows(self) -> list[MeanRow]:
        """The means of every configuration over `mean_over`, in the order of the grid."""
        axis = next((axis for axis in self.plan.axes if axis.key == self.plan.mean_over), None)
        over = () if axis is None else axis.keys
        columns = [""] if axis is None else [config_label(config) for config in axis.configs]
        done: dict[str, dict[str, Trial]] = {}
        rest: dict[str, Config] = {}
        for trial in self.trials:
            row = json.dumps(_without(trial.config, over), sort_keys=True)  # a label may be cut
            rest[row] = _without(trial.config, over)
            column = config_label({key: trial.config[key] for key in over})
            done.setdefault(row, {})
            if trial in self.through:
                done[row][column] = trial
        means = self._means(done, columns)
        rows = []
        for row, trials in done.items():
            missing = [column for column in columns if column not in trials]
            scores = [trial.score or 0.0 for trial in trials.values()]
            score = statistics.fmean(scores) if scores and not missing else None
            values = {name: of[row] for name, of in means.items() if row in of}
            rows.append(MeanRow(rest[row], list(trials.values()), score, values, missing))
        return rows

    def _means(
        self, done: Mapping[str, Mapping[str, Trial]], columns: Sequence[str]
    ) -> dict[str, dict[str, Interval]]:
        """Return the means over columns by metric and row, in the round of the objective."""
        import pandas

        lines = [
            {"row": row, "column": column, "seed": seed, **end.values, self.chooser: end.choice}
            for row, trials in done.items()
            for column, trial in trials.items()
            for seed, end in trial.measured.items()
        ]
        numbers = pandas.DataFrame(lines, columns=None if lines else ["row", "column", "seed"])
        names = dict.fromkeys([self.chooser, *self.plan.metrics])
        means = {name: over_columns(numbers, name, columns) for name in names}
        if all(means.get(name) for name in PARTS):
            means[HM] = of_means(numbers, "accuracy_hm", columns)
            means[CM] = of_means(numbers, "accuracy_cm", columns)
        return means

    @property
    def best_row(self) -> MeanRow | None:
        """The configuration of the best mean; those that lack a data set do not count."""
        ranked = [] if self.plan.select == "nothing" else self.rows
        whole = [row for row in ranked if row.score is not None]
        return max(whole, key=lambda row: row.score or 0.0, default=None)


def _without(config: Config, over: Sequence[str]) -> Config:
    return {key: value for key, value in config.items() if key not in over}


def sweep_outcome(study: Study) -> SweepOutcome:
    """Return the results of a sweep's finished runs."""
    cell, plan = study.cells[0], study.plan
    study.states()
    running = {run.spec.key for run in study.runs.values() if run.status == "running"}
    trials, metrics = [], dict[str, Metric]()
    for number, config in enumerate(cell.first):
        specs = [cell.run_spec(config, "tuning", seed) for seed in plan.report.seeds]
        keys = {each.key for each in specs}
        ends = {each.seed: study.outcome_of(each) for each in specs}
        measured = {seed: end for seed, end in ends.items() if isinstance(end, Measured)}
        reasons = [end for end in ends.values() if isinstance(end, str)]
        status: Status = "running" if keys & running else "pending"
        if reasons:
            status = "failed"
        elif len(measured) == len(specs):
            status = "stopped" if keys & set(study.stopped) else "finished"
        seconds = sum(study.seconds.get(key, 0.0) for key in keys)
        folders = [study.folder(each.key) for each in specs]
        reason = reasons[0] if reasons else None
        trials.append(Trial(number, config, status, measured, folders, reason, seconds))
        metrics |= {each.name: each for end in measured.values() for each in end.metrics}
    return SweepOutcome(plan, trials, metrics)


def best_command(plan: StudyPlan, config: Mapping[str, Any]) -> str:
    """Return the command that runs one configuration alone, with the first seed."""
    base = plan.bases[plan.experiment]
    usual = {"workers": 1, "report.select": base.get("report", {}).get("select", "validation")}
    laid = {k: v for k, v in plan.defaults(base) if usual.get(k) != v}
    rounds = {} if plan.report.rounds is None else {"rounds": plan.report.rounds}
    pairs = {**laid, **plan.set, **rounds, **plan.given, **config}
    if plan.report.seeds[0] != base.get("seed", 0):
        pairs["seed"] = plan.report.seeds[0]
    keys = [shlex.quote(f"{key}={flow(value)}") for key, value in pairs.items()]
    for plugin in read_plugins(plan.plugins):
        keys += ["--plugin", shlex.quote(plugin.given)]
    return " ".join(["python -m fedray.run", shlex.quote(plan.experiment), *keys])


def flow(value: Any) -> str:
    """Write a value as the command line has it, on one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
