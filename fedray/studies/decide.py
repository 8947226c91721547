"""Add seeds to a table until its claims are decided: `fedray decide NAME --hours 3`."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import count, islice

from fedray.studies.flow import Request, carry_out
from fedray.studies.outcome import Outcome, TestedClaim, outcome
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.study import Study
from fedray.units import time_of


@dataclass(frozen=True)
class Step:
    """The claim that is tested next.

    Attributes:
        claim: the undecided claim.
        seeds: the seeds to add to both rows of the claim.
        seconds: computing time of one seed, in seconds.
        needed: the least number of further seeds that may decide the claim.
    """

    claim: TestedClaim
    seeds: list[int]
    seconds: float
    needed: int

    @property
    def cost(self) -> float:
        """Estimated computing time until the claim may be decided, in seconds."""
        return self.seconds * self.needed

    def more(self, plan: StudyPlan) -> dict[str, list[int]]:
        """Return the plan's `report.more`, extended by the step's seeds."""
        seeds_by_row = defaultdict(
            list, {row: list(seeds) for row, seeds in plan.report.more.items()}
        )
        for row in _rows(self.claim):
            seeds_by_row[row] += [seed for seed in self.seeds if seed not in seeds_by_row[row]]
        return dict(seeds_by_row)


def decide_claims(request: Request, hours: float) -> int:
    """Run a table, then add seeds for the cheapest undecided claim until the time is spent.

    Args:
        request: the table.
        hours: total time; a step that is estimated to exceed it is not begun.
    """
    end = time.monotonic() + 3600 * hours
    pairs = [*request.pairs, ("test", "anytime")]
    study, code = carry_out(replace(request, pairs=pairs))
    while code == 0:
        step = next_step(study, outcome(study), end - time.monotonic())
        if step is None:
            break
        seeds = ", ".join(map(str, step.seeds))
        print(
            f"undecided: {step.claim.claim.question}; adding seeds {seeds}, about "
            f"{time_of(step.seconds * len(step.seeds))} of computing",
            flush=True,
        )
        more = ("report.more", step.more(study.plan))
        study, code = carry_out(replace(request, pairs=[*pairs, more]))
    undecided = [claim for claim in outcome(study).claims if claim.verdict == "undecided"]
    print(f"{len(undecided)} of {len(study.plan.parsed_claims())} claims are undecided")
    return code


def next_step(study: Study, result: Outcome, seconds: float) -> Step | None:
    """Return the step towards the cheapest undecided claim; None if no step fits into the time.

    Args:
        study: the finished table.
        result: its outcome.
        seconds: the remaining time.
    """
    steps = []
    for decided in result.claims:
        if decided.needed is None or decided.needed.least is None:
            continue  # the claim is decided, or no number of seeds can be estimated
        missing = max(1, decided.needed.least - len(decided.comparison.differences))
        per_seed = _seconds_of_a_seed(study, result, decided)
        fit = min(missing, int(seconds / per_seed)) if per_seed else missing
        if fit:
            steps.append(Step(decided, _next_seeds(study.plan, decided, fit), per_seed, missing))
    return min(steps, key=lambda step: step.cost, default=None)


def _rows(decided: TestedClaim) -> list[str]:
    return list(dict.fromkeys([decided.claim.better.row, decided.claim.worse.row]))


def _next_seeds(plan: StudyPlan, decided: TestedClaim, number: int) -> list[int]:
    """Return seeds above `report.seeds` that at least one row of the claim does not have yet."""
    has = set.intersection(*(set(plan.seeds_of(row)) for row in _rows(decided)))
    new = (seed for seed in count(max(plan.report.seeds) + 1) if seed not in has)
    return list(islice(new, number))


def _seconds_of_a_seed(study: Study, result: Outcome, decided: TestedClaim) -> float:
    """Return the mean computing time of a seed of the claim's rows, in seconds.

    The time includes tuning and all columns of a row, because seeds are added in all columns.
    """
    total = 0.0
    for row in _rows(decided):
        runs = [
            run for column in study.plan.columns for run in result.cells[Place(row, column)].runs
        ]
        ends = study.measured_runs(runs).values()
        total += sum(end.seconds for end in ends) / len(study.plan.seeds_of(row))
    return total
