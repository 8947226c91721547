"""A sweep as a frame: a row per configuration and seed, and their means per configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedray.results.design import Config
from fedray.results.numbers import scale_of
from fedray.results.paired import Interval, t_interval
from fedray.storage.metric import Metric
from fedray.studies.cell import DECIMALS
from fedray.studies.plan import StudyPlan
from fedray.studies.space import beyond
from fedray.studies.study import Study

if TYPE_CHECKING:
    import pandas

STATUSES = ("failed", "running", "pending", "stopped", "finished")
"""The status of a configuration is the first of these that one of its runs has."""


@dataclass(frozen=True, eq=False)
class SweepOutcome:
    """The results of a whole sweep.

    Attributes:
        plan: the plan of the sweep.
        configs: the configurations, in the order in which they were tried.
        runs: a row per configuration and seed: `trial` (index in `configs`), `seed`, the searched
            keys, `folder`, `status` (pending, running, finished, stopped by ASHA, failed), `reason`
            of a failure, `seconds` in this invocation; and of a finished run `round`, `choice` (the
            metric that chooses, in this round), `score` (the same, larger is better), `bytes`, and
            the metrics of the sweep.
        metrics: declarations of the metrics by name.
    """

    plan: StudyPlan
    configs: Sequence[Config]
    runs: pandas.DataFrame
    metrics: Mapping[str, Metric]

    @property
    def keys(self) -> list[str]:
        """The searched keys."""
        return [key for axis in self.plan.axes for key in axis.keys]

    @cached_property
    def trials(self) -> pandas.DataFrame:
        """A row per configuration: the searched keys, status, and means over its seeds.

        `objective` is the mean of the metric that chooses, `std` its sample standard deviation,
        `round` its round or their range ("9-10"). Means are missing while a seed is missing.
        """
        import pandas

        by_trial = self.runs.groupby("trial")
        table = {
            **self.runs.drop_duplicates("trial").set_index("trial")[self.keys],
            "status": by_trial["status"].agg(lambda found: min(found, key=STATUSES.index)),
            "objective": self._over_seeds("choice", statistics.fmean),
            "score": self._over_seeds("score", statistics.fmean),
            "std": self._over_seeds("choice", _std),
            "round": self._over_seeds("round", _range).fillna(""),
            "bytes": self._over_seeds("bytes", statistics.fmean),
            "seconds": by_trial["seconds"].agg(lambda values: sum(values.tolist())),
            "reason": by_trial["reason"].agg(lambda found: next(filter(None, found), "")),
            **{name: self._over_seeds(name, statistics.fmean) for name in self.plan.metrics},
        }
        return pandas.DataFrame(table).rename_axis("trial")

    def _over_seeds(self, name: str, function: Callable[[list[float]], Any]) -> pandas.Series:
        """Return a function of a column of `runs` by configuration; NaN while a seed is missing."""
        import pandas

        values = {
            trial: math.nan if of.isna().any() else function(of.tolist())
            for trial, of in self.runs.groupby("trial")[name]
        }
        return pandas.Series(values, name=name)

    def intervals(self, name: str = "choice") -> dict[int, Interval | None]:
        """Return the mean over seeds of a column of `runs` with its spread, by configuration.

        The unit is the one that is shown. None while a seed is missing.
        """
        unit = scale_of(self.declared(self.chooser if name == "choice" else name))
        found = self._over_seeds(name, lambda values: t_interval([unit * v for v in values]))
        return {trial: of if isinstance(of, Interval) else None for trial, of in found.items()}

    def declared(self, name: str) -> Metric:
        """Return the declaration of a metric."""
        return self.metrics.get(name, Metric(name))

    @property
    def metric(self) -> Metric:
        """The sweep's first metric."""
        return self.declared(self.plan.metrics[0])

    @property
    def chooser(self) -> str:
        """The metric that chooses."""
        return self.plan.chosen_by(next(iter(self.plan.rows)))

    @property
    def ended(self) -> pandas.DataFrame:
        """The configurations that have ended with a result."""
        is_over = self.trials["status"].isin(["finished", "stopped"])
        return self.trials[is_over & self.trials["objective"].notna()]

    @property
    def ranked(self) -> list[int]:
        """Indices of `ended`, best first; ties go to the earlier configuration."""
        scores = self.ended["score"].round(DECIMALS)
        return list(scores.sort_values(ascending=False, kind="stable").index)

    @property
    def best(self) -> int | None:
        """Index of the best configuration, or None if nothing is chosen."""
        return next(iter([] if self.plan.select == "nothing" else self.ranked), None)

    @property
    def notes(self) -> list[str]:
        """Sentences about how sure the best configuration is; none while trials are missing."""
        best = self.best
        if best is None or self.trials["status"].isin(["pending", "running"]).any():
            return []
        scores = self._over_seeds("score", t_interval)
        first, others = scores[best], [scores[number] for number in self.ended.index]
        within = sum(score.mean >= first.spread[0] for score in others) - 1
        notes = [f"{within or 'no'} other configuration(s) lie within the spread of the best"]
        if first.n == 1:
            notes = ["each configuration ran with one seed, so chance may decide which one is best"]
        notes = notes if len(others) > 1 else []
        rounded = self.ended["score"].round(DECIMALS)
        ties = [str(n) for n in self.ranked[1:] if rounded[n] == rounded[best]]
        notes += [f"trial(s) {', '.join(ties)} tie with trial {best}, the first"] if ties else []
        edges = beyond(self.plan.axes, self.configs, self.configs[best])
        return [*notes, *(f"the best lies at an edge: {edge}" for edge, _ in edges)]


def sweep_outcome(study: Study) -> SweepOutcome:
    """Compute the results of a sweep from its finished runs."""
    import pandas

    plan, place, rows = study.plan, study.plan.places[0], []
    configs = study.configs
    for number, config in enumerate(configs):
        for seed in plan.report.seeds:
            spec = plan.run(place, config, "tuning", seed)
            end = study.end_of(spec)
            row = {"trial": number, "seed": seed, **config, "folder": study.folder(spec.key),
                   "status": study.status_of(spec), "reason": "",
                   "seconds": study.seconds.get(spec.key, 0.0)}  # fmt: skip
            if isinstance(end, str):
                row |= {"reason": end}
            elif end is not None:
                row |= {"round": end.round, "choice": end.choice, "score": end.score}
                row |= {"bytes": end.bytes, **end.values}
            rows.append(row)
    numbers = ["round", "choice", "score", "bytes", *plan.metrics]
    columns = ["trial", "seed", *(key for axis in plan.axes for key in axis.keys)]
    columns += ["folder", "status", "reason", "seconds", *numbers]
    runs = pandas.DataFrame(rows, columns=columns, dtype=object)
    types = {"trial": int, "seed": int, **dict.fromkeys(["seconds", *numbers], float)}
    return SweepOutcome(plan, configs, runs.astype(types), study.declared)


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation; NaN for one seed."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _range(rounds: Sequence[float]) -> str:
    """Return the lowest and the highest round."""
    return "-".join(map(str, sorted({int(min(rounds)), int(max(rounds))})))
