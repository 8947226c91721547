"""A sweep as a frame: a row per configuration and seed, and their means per configuration."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml

from fedray.config import is_below, keys_without_effect, read_plugins
from fedray.results.design import Config, Place
from fedray.results.paired import Interval
from fedray.storage.metric import Metric
from fedray.studies.cell import DECIMALS
from fedray.studies.plan import StudyPlan
from fedray.studies.space import beyond
from fedray.studies.study import Study

if TYPE_CHECKING:
    import pandas

NEAR = 0.05
"""Share of a range, in logarithms for loguniform, that counts as its end."""


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
        means = {name: by_trial[name].agg(_mean) for name in self.plan.metrics}
        table = {
            **self.runs.drop_duplicates("trial").set_index("trial")[self.keys],
            "status": by_trial["status"].agg(_status),
            "objective": by_trial["choice"].agg(_mean),
            "score": by_trial["score"].agg(_mean),
            "std": by_trial["choice"].agg(_std),
            "round": by_trial["round"].agg(_range),
            "bytes": by_trial["bytes"].agg(_mean),
            "seconds": by_trial["seconds"].agg(lambda values: sum(values.tolist())),
            "reason": by_trial["reason"].agg(lambda values: next(filter(None, values), "")),
            **means,
        }
        return pandas.DataFrame(table)

    def intervals(self, name: str = "choice") -> dict[int, Interval | None]:
        """Return the mean over seeds of a column of `runs` with its spread, by configuration.

        None while a seed is missing.
        """
        return {
            int(number): None if values.isna().any() else _interval(values.tolist())
            for number, values in self.runs.groupby("trial")[name]
        }

    @property
    def metric(self) -> Metric:
        """The sweep's first metric."""
        return self.metrics.get(self.plan.metrics[0], Metric(self.plan.metrics[0]))

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
        scores = self.ended["score"].to_dict()
        return sorted(scores, key=lambda number: -round(scores[number], DECIMALS))

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
        scores = [self.intervals("score")[number] for number in (best, *self.ended.index)]
        first, *ended = [score for score in scores if score is not None]
        notes = [_spread_note(first, ended)] if len(ended) > 1 else []
        ties = [str(number) for number in self.ranked[1:] if self._is_tie(number, best)]
        notes += [f"trial(s) {', '.join(ties)} tie with trial {best}, the first"] if ties else []
        notes += [f"the best lies at an edge: {edge}" for edge in self._edges(self.configs[best])]
        return notes

    def _is_tie(self, number: int, best: int) -> bool:
        scores = self.ended["score"]
        return bool(round(scores[number], DECIMALS) == round(scores[best], DECIMALS))

    def _edges(self, best: Config) -> Iterator[str]:
        """Yield where the best configuration lies at the end of an axis."""
        axes = self.plan.axes
        yield from (str(edge) for edge, _ in beyond(axes, self.configs, best))
        for axis in axes:
            if axis.is_listed or axis.key not in best:
                continue
            where = math.log if "log" in axis.distribution else float
            low, high, value = (where(number) for number in (*axis.ends, best[axis.key]))
            share = (value - low) / (high - low)
            if not NEAR < share < 1 - NEAR:
                end = "lower" if share < NEAR else "upper"
                ends = f"{axis.ends[0]:g} to {axis.ends[1]:g}"
                yield f"{axis.key}={best[axis.key]:.4g} lies at the {end} end of {ends}"


def sweep_outcome(study: Study) -> SweepOutcome:
    """Compute the results of a sweep from its finished runs."""
    import pandas

    plan, place, rows = study.plan, study.plan.places[0], []
    configs = study.suggested if plan.uses_optuna else plan.configurations(place.row)
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


def _spread_note(best: Interval, ended: Sequence[Interval]) -> str:
    """Return how many configurations a seed may put before the best one."""
    if best.n == 1:
        return "each configuration ran with one seed, so chance may decide which one is best"
    count = sum(score.mean >= best.spread[0] for score in ended) - 1
    if count == 0:
        return "no other configuration lies within the spread of the best"
    return f"{count} other configuration(s) lie within the spread of the best"


def _mean(values: pandas.Series) -> float:
    return math.nan if values.isna().any() else statistics.fmean(values)


def _std(values: pandas.Series) -> float:
    """Return the sample standard deviation; NaN for one seed, or while a seed is missing."""
    missing = values.isna().any() or len(values) < 2
    return math.nan if missing else statistics.stdev(values.tolist())


def _range(rounds: pandas.Series) -> str:
    """Return the lowest and the highest round; "" while a seed is missing."""
    if rounds.isna().any():
        return ""
    numbers = sorted(map(int, rounds.tolist()))
    return "-".join(map(str, dict.fromkeys([numbers[0], numbers[-1]])))


def _interval(values: Sequence[float]) -> Interval:
    mean, n = statistics.fmean(values), len(values)
    std = statistics.stdev(values) if n > 1 else math.nan
    return replace(Interval.of(mean, std, n), values=tuple(values))


def _status(statuses: pandas.Series) -> str:
    """Return the status of a configuration from those of its runs."""
    found = set(statuses)
    order = ("failed", "running", "pending", "stopped", "finished")
    return next(status for status in order if status in found)


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
    place = Place(next(iter(plan.rows)), next(iter(plan.columns)))
    experiment = plan.experiment_of(place, dict(config), "tuning", plan.report.seeds[0])
    unread = [key for key, why in keys_without_effect(experiment).items() if why.is_refused]
    pairs = {key: value for key, value in pairs.items() if not is_below(key, unread)}
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
