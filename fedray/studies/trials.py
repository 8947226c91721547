"""Results of a sweep: its configurations with means over seeds, and the best one."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import yaml

from fedray.config import read_plugins
from fedray.results.design import Config
from fedray.results.paired import Interval
from fedray.results.record import Measured
from fedray.storage.metric import Metric
from fedray.studies.cell import DECIMALS
from fedray.studies.plan import StudyPlan
from fedray.studies.space import continue_grid
from fedray.studies.study import Status, Study

NEAR = 0.05
"""Share of a range, in logarithms for loguniform, that counts as its end."""


@dataclass(frozen=True)
class Trial:
    """One configuration with the results of all its seeds.

    Attributes:
        number: index from 0.
        config: values of the searched keys.
        status: pending, running, finished, stopped (by ASHA) or failed.
        measured: result of each finished seed.
        runs: folders of the runs of all seeds.
        reason: why the trial failed.
        seconds: time of its runs in this invocation, start-up included.
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
        """True if the trial has ended: finished, stopped or failed."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def objective(self) -> float | None:
        """Mean over seeds of the metric that chooses; None while a seed is missing."""
        return self._mean([end.choice for end in self.measured.values()])

    @property
    def score(self) -> float | None:
        """Objective with its sign such that larger is better, rounded for ranking."""
        score = self._mean([end.score for end in self.measured.values()])
        return None if score is None else round(score, DECIMALS)

    @property
    def std(self) -> float:
        """Sample standard deviation of the objective over seeds; 0 for one seed."""
        return _std([end.choice for end in self.measured.values()])

    @property
    def best_rounds(self) -> list[int]:
        """Round of the objective of each seed."""
        return [end.round for end in self.measured.values()]

    @property
    def when(self) -> str:
        """Round of the objective, or the range over seeds such as "9-10"."""
        rounds = self.best_rounds
        return "-".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else ""

    @property
    def bytes(self) -> float:
        """Bytes sent and received by one run, mean over seeds."""
        return self._mean([float(end.bytes) for end in self.measured.values()]) or 0.0

    def values(self, metric: str) -> dict[int, float]:
        """Return a metric by seed, in the round of the objective; seeds without it are left out."""
        by_seed = {seed: end.values.get(metric) for seed, end in self.measured.items()}
        return {seed: value for seed, value in by_seed.items() if value is not None}

    def mean(self, metric: str) -> float | None:
        """Return the mean over seeds of a metric; None while a seed is missing."""
        return self._mean(list(self.values(metric).values()))

    def spread(self, metric: str) -> float:
        """Return the sample standard deviation over seeds of a metric; 0 for one seed."""
        return _std(list(self.values(metric).values()))

    def interval(self, metric: str | None = None) -> Interval | None:
        """Return the mean over seeds of a metric, or of the objective, with its spread.

        None while a seed is missing.
        """
        if metric is None:
            mean, std, values = self.objective, self.std, [e.choice for e in self.measured.values()]
        else:
            mean, std = self.mean(metric), self.spread(metric)
            values = [*self.values(metric).values()]
        if mean is None:
            return None
        return replace(Interval.of(mean, std, len(values)), values=tuple(values))

    def _mean(self, values: Sequence[float]) -> float | None:
        return statistics.fmean(values) if values and len(values) == len(self.runs) else None


def _std(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class SweepOutcome:
    """The results of a whole sweep.

    Attributes:
        plan: the plan of the sweep.
        trials: the configurations, in the order in which they were tried.
        metrics: declarations of the metrics by name.
    """

    plan: StudyPlan
    trials: Sequence[Trial] = field(default_factory=list)
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The sweep's first metric."""
        return self.metrics.get(self.plan.metrics[0], Metric(self.plan.metrics[0]))

    @property
    def through(self) -> list[Trial]:
        """Trials that have ended with a result."""
        return [t for t in self.trials if t.is_over and t.objective is not None]

    @property
    def ranked(self) -> list[Trial]:
        """Trials that have ended with a result, best first; ties go to the earlier trial."""
        return sorted(self.through, key=lambda trial: -(trial.score or 0.0))

    @property
    def best(self) -> Trial | None:
        """The best trial, or None if nothing is chosen; ties go to the earlier trial."""
        return next(iter([] if self.plan.select == "nothing" else self.ranked), None)

    @property
    def chooser(self) -> str:
        """The metric that chooses."""
        return self.plan.chosen_by(next(iter(self.plan.rows)))

    @property
    def notes(self) -> list[str]:
        """Sentences about how sure the best configuration is; none while trials are missing."""
        best = self.best
        if best is None or not all(trial.is_over for trial in self.trials):
            return []
        notes, first = list[str](), best.interval()
        ranked = [one for trial in self.through if (one := trial.interval()) is not None]
        if first is not None and len(ranked) > 1:
            notes.append(self._spread_note(first, ranked))
        notes += [f"the best lies at an edge: {edge}" for edge in self._edges(best.config)]
        return notes

    def _spread_note(self, best: Interval, ranked: Sequence[Interval]) -> str:
        """Return how many configurations a seed may put before the best one."""
        if best.n == 1:
            return "each configuration ran with one seed, so chance may decide which one is best"
        low, high = best.spread
        is_min = self.metrics.get(self.chooser, Metric(self.chooser)).direction == "min"
        count = sum(one.mean <= high if is_min else one.mean >= low for one in ranked) - 1
        if count == 0:
            return "no other configuration lies within the spread of the best"
        return f"{count} other configuration(s) lie within the spread of the best"

    def _edges(self, best: Config) -> Iterator[str]:
        """Yield where the best configuration lies at the end of an axis."""
        tried = [trial.config for trial in self.through]
        _, edges = continue_grid(tried, best, self.plan.axes, 0, lambda config: True, extend=False)
        yield from map(str, edges)
        for axis in self.plan.axes:
            if axis.is_listed or axis.key not in best:
                continue
            where = log if axis.distribution == "loguniform" else float
            low, high, value = (where(number) for number in (*axis.values, best[axis.key]))
            share = (value - low) / (high - low)
            if not NEAR < share < 1 - NEAR:
                end = "lower" if share < NEAR else "upper"
                ends = f"{axis.values[0]:g} to {axis.values[1]:g}"
                yield f"{axis.key}={best[axis.key]:.4g} lies at the {end} end of {ends}"


def sweep_outcome(study: Study) -> SweepOutcome:
    """Compute the results of a sweep from its finished runs."""
    study.states()
    trials = [trial_of(study, config) for config in study.cells[0].first]
    return SweepOutcome(study.plan, trials, study.declared)


def trial_of(study: Study, config: Config) -> Trial:
    """Return one configuration of a sweep with the results of its finished runs."""
    cell = study.cells[0]
    specs = [cell.run_spec(config, "tuning", seed) for seed in study.plan.report.seeds]
    keys = {spec.key for spec in specs}
    ends = {spec.seed: study.outcome_of(spec) for spec in specs}
    measured = {seed: end for seed, end in ends.items() if isinstance(end, Measured)}
    reasons = [end for end in ends.values() if isinstance(end, str)]
    running = any(run.status == "running" and run.spec.key in keys for run in study.runs.values())
    status: Status = "running" if running else "pending"
    if reasons:
        status = "failed"
    elif len(measured) == len(specs):
        status = "stopped" if keys & set(study.stopped) else "finished"
    seconds = sum(study.seconds.get(key, 0.0) for key in keys)
    folders = [study.folder(spec.key) for spec in specs]
    reason = reasons[0] if reasons else None
    return Trial(cell.first.index(config), config, status, measured, folders, reason, seconds)


def best_command(plan: StudyPlan, config: Mapping[str, Any]) -> str:
    """Return the command that runs one configuration alone, with the first seed."""
    base = plan.bases[plan.experiment]
    run_defaults = {
        "workers": 1,
        "report.select": base.get("report", {}).get("select", "validation"),
    }
    defaults = {k: v for k, v in plan.defaults(base) if run_defaults.get(k) != v}
    rounds = {} if plan.report.rounds is None else {"rounds": plan.report.rounds}
    pairs = {**defaults, **plan.set, **rounds, **plan.given, **config}
    if plan.report.seeds[0] != base.get("seed", 0):
        pairs["seed"] = plan.report.seeds[0]
    keys = [shlex.quote(f"{key}={flow(value)}") for key, value in pairs.items()]
    for plugin in read_plugins(plan.plugins):
        keys += ["--plugin", shlex.quote(plugin.given)]
    return " ".join(["python -m fedray.run", shlex.quote(plan.experiment), *keys])


def flow(value: Any) -> str:
    """Return a value as one line of YAML, as the command line takes it."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
