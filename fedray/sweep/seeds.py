"""The seeds of one configuration: their rounds merged, and the objective over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedray.errors import RunFailed
from fedray.records import Round, Run, RunFolder, Traffic, best_round
from fedray.sweep.spec import SweepPlan


@dataclass(frozen=True)
class Objective:
    """What a trial is worth so far: over seeds, of each seed's best or last value.

    Attributes:
        value: the mean over seeds of the number that chooses.
        std: the sample standard deviation over seeds; 0 for one seed.
        rounds: for each seed, the round it was measured in; never round 0.
        test: the metric on the test in these rounds, which chose nothing; None where it was not
            measured.
        test_std: its sample standard deviation.
    """

    value: float
    std: float
    rounds: list[int]
    test: float | None = None
    test_std: float = 0.0


@dataclass(frozen=True)
class MergedRound:
    """One round of all seeds.

    Attributes:
        mean: metrics and traffic as means over seeds, with the spread of the number that chooses
            and of the metric as "<metric>_seed_std"; seconds as their sum, and everybody's events.
        by_seed: the number that chooses, of each seed; None where it was not measured.
        shown: likewise, the metric.
    """

    mean: Round
    by_seed: Sequence[float | None]
    shown: Sequence[float | None]

    @property
    def round(self) -> int:
        """The round."""
        return self.mean.round


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the latter is 0 for one value."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0


def seed_folders(folder: Path, seeds: Sequence[int]) -> list[RunFolder]:
    """The runs' folders of a trial."""
    return [RunFolder(folder / f"seed_{seed}") for seed in seeds]


def lockstep(streams: Sequence[Iterator[Round]]) -> Iterator[list[Round]]:
    """Round by round of all seeds; one that stopped early stays as it was in its last round."""
    found: list[Round | None] = [None] * len(streams)
    while True:
        now = [next(stream, None) for stream in streams]
        number = next((each.round for each in now if each is not None), None)
        if number is None:
            return
        pairs = zip(now, found, strict=True)
        found = [each or (before and _standing(before, number)) for each, before in pairs]
        yield [each for each in found if each is not None]


def _standing(last: Round, number: int) -> Round:
    """A later round of a run that has stopped: nobody does or sends anything."""
    return Round(number, 0.0, last.metrics, last.per_client)


def merge(rounds: Sequence[Round], objective: str, metric: str | None = None) -> MergedRound:
    """One round of all seeds.

    Args:
        rounds: the seeds' records of one round.
        objective: the number that chooses.
        metric: what is shown beside it; None where that is the objective.
    """
    metric = objective if metric is None else metric
    if len({each.round for each in rounds}) > 1:
        raise RunFailed(f"the seeds are in rounds {[each.round for each in rounds]}")
    names = [name for name in rounds[0].metrics if all(name in each.metrics for each in rounds)]
    spreads = {name: mean_and_std([each.metrics[name] for each in rounds]) for name in names}
    metrics = {name: mean for name, (mean, _) in spreads.items()}
    for name in (objective, metric) if len(rounds) > 1 else ():
        if name in spreads:
            metrics[f"{name}_seed_std"] = spreads[name][1]
    timed = [each.client_seconds for each in rounds if each.client_seconds is not None]
    mean = Round(
        round=rounds[0].round,
        seconds=sum(each.seconds for each in rounds),
        metrics=metrics,
        up=_mean_traffic([each.up for each in rounds]),
        down=_mean_traffic([each.down for each in rounds]),
        events=[event for each in rounds for event in each.events],
        client_seconds=mean_and_std(timed)[0] if timed else None,
    )
    by_seed, shown = ([each.metrics.get(name) for each in rounds] for name in (objective, metric))
    return MergedRound(mean, by_seed, shown)


def _mean_traffic(traffic: Sequence[Traffic]) -> Traffic:
    total = sum(traffic, Traffic())
    count = len(traffic)
    return Traffic(
        {kind: value / count for kind, value in total.params.items()},
        {kind: value / count for kind, value in total.bytes.items()},
    )


def objective_of(rounds: Sequence[MergedRound], plan: SweepPlan) -> Objective | None:
    """The objective over these rounds; None when none of them, round 0 aside, was evaluated."""
    curves: list[dict[int, float]] = []
    for seed in range(len(plan.seeds)):
        measured = {
            each.round: value
            for each in rounds
            if each.round > 0
            and None not in each.by_seed
            and (value := each.by_seed[seed]) is not None
        }
        if not measured:
            return None
        curves.append(measured)
    chosen = [_chosen_round(curve, plan) for curve in curves]
    values = [curve[round_] for curve, round_ in zip(curves, chosen, strict=True)]
    shown = {each.round: each.shown for each in rounds}
    tests = [shown[round_][seed] for seed, round_ in enumerate(chosen)]
    known = [value for value in tests if value is not None]
    test, test_std = mean_and_std(known) if len(known) == len(tests) else (None, 0.0)
    mean, std = mean_and_std(values)
    return Objective(mean, std, chosen, test, test_std)


def _chosen_round(curve: dict[int, float], plan: SweepPlan) -> int:
    """The last round, or the first of the best ones, of a curve that has some."""
    best = max(curve) if plan.at == "final" else best_round(curve, plan.mode)
    assert best is not None
    return best


def read_merged(folder: Path, plan: SweepPlan) -> list[MergedRound]:
    """Read the rounds that all seeds of a trial have finished, merged."""
    return merged_rounds(read_seeds(folder, plan), plan)


def merged_rounds(runs: Sequence[Run], plan: SweepPlan) -> list[MergedRound]:
    """Merge the rounds that all seeds of a trial have finished."""
    going = [run.done for run in runs if not run.is_finished]
    end = min(going, default=max((run.done for run in runs), default=-1))
    streams = [(done for done in run.rounds if done.round <= end) for run in runs]
    return [merge(rounds, plan.objective, plan.metric) for rounds in lockstep(streams)]


def read_seeds(folder: Path, plan: SweepPlan) -> list[Run]:
    """The runs of all seeds of a trial; none where one of them has not begun."""
    return read_runs(seed_folders(folder, plan.seeds))


def read_runs(folders: Sequence[RunFolder]) -> list[Run]:
    """The runs of some folders; none where one of them has not begun."""
    begun = all(folder.has_result for folder in folders)
    return [folder.read() for folder in folders] if begun else []
