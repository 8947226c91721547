"""Add seeds to a table until its claims are decided: `fedray decide NAME --hours 3`."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import count, islice

from fedray.studies.flow import Request, carry_out
from fedray.studies.outcome import Decided, Outcome, outcome
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.study import Study
from fedray.units import time_of


@dataclass(frozen=True)
class Step:
    """The claim that is tested next.

    Attributes:
        claim: the undecided claim.
        seeds: the seeds that are added to both of its rows.
        seconds: what one seed costs, of computing.
        needed: how many seeds would decide the claim at least.
    """

    claim: Decided
    seeds: list[int]
    seconds: float
    needed: int

    @property
    def cost(self) -> float:
        """Seconds until the claim may be decided."""
        return self.seconds * self.needed

    def more(self, plan: StudyPlan) -> dict[str, list[int]]:
        """Return `report.more` of a plan with the step's seeds."""
        found = defaultdict(list, {row: list(seeds) for row, seeds in plan.report.more.items()})
        for row in _rows(self.claim):
            found[row] += [seed for seed in self.seeds if seed not in found[row]]
        return dict(found)


def decide_claims(request: Request, hours: float) -> int:
    """Run a table, then add seeds for the cheapest undecided claim until the time is spent.

    Args:
        request: the table.
        hours: the time in all; what is estimated to take longer is not begun.
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
    left = [each for each in outcome(study).claims if each.verdict == "undecided"]
    print(f"{len(left)} of {len(study.plan.parsed_claims())} claims are undecided")
    return code


def next_step(study: Study, found: Outcome, seconds: float) -> Step | None:
    """Return the step towards the cheapest undecided claim; None if none fits into the time.

    Claims for which no number of seeds can be named are left out.

    Args:
        study: the table, finished.
        found: its outcome.
        seconds: what is left.
    """
    steps = []
    for decided in found.claims:
        if decided.needed is None or decided.needed.least is None:
            continue  # it is decided, or no number of seeds can be named
        missing = max(1, decided.needed.least - len(decided.comparison.differences))
        per_seed = _seconds_of_a_seed(study, found, decided)
        fit = min(missing, int(seconds / per_seed)) if per_seed else missing
        if fit:
            steps.append(Step(decided, _next_seeds(study.plan, decided, fit), per_seed, missing))
    return min(steps, key=lambda step: step.cost, default=None)


def _rows(decided: Decided) -> list[str]:
    return list(dict.fromkeys([decided.claim.better.row, decided.claim.worse.row]))


def _next_seeds(plan: StudyPlan, decided: Decided, number: int) -> list[int]:
    """Return seeds above the report's that one of the claim's rows does not have yet."""
    has = set.intersection(*(set(plan.seeds_of(row)) for row in _rows(decided)))
    new = (seed for seed in count(max(plan.report.seeds) + 1) if seed not in has)
    return list(islice(new, number))


def _seconds_of_a_seed(study: Study, found: Outcome, decided: Decided) -> float:
    """Return the mean seconds of computing that a seed of the claim's rows took, tuning included.

    Seeds are added in all columns of a row.
    """
    total = 0.0
    for row in _rows(decided):
        runs = [
            run for column in study.plan.columns for run in found.cells[Place(row, column)].runs
        ]
        ends = study.measured_runs(runs).values()
        total += sum(end.seconds for end in ends) / len(study.plan.seeds_of(row))
    return total
