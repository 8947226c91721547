"""The content of a table's table.json, and the record of how the table was made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedray.config import Tree
from fedray.results.paired import Comparison, Interval, Side

if TYPE_CHECKING:
    from fedray.studies.cell import TriedConfig
    from fedray.studies.controls import ControlResult
    from fedray.studies.outcome import CellResult, Outcome, TestedClaim


@dataclass(frozen=True)
class Made:
    """How a table was made.

    Attributes:
        command: the command that repeats it.
        commit: commit of the code that wrote the page.
        commits: commits of the code that executed the runs, including tuning.
        versions: versions of the most important packages.
        machine: description of the machine.
        when: local time.
        runs: total number of runs of the table.
        shared: number of runs that existed when this invocation began.
        seconds: computing time of all runs.
        bytes: bytes sent and received in all runs.
        tuning_rounds: rounds of a tuning run; "10-20" if cells differ.
        report_rounds: rounds of a reported run.
    """

    command: str
    commit: str
    commits: Sequence[str]
    versions: str
    machine: str
    when: str
    runs: int
    shared: int
    seconds: float
    bytes: int
    tuning_rounds: str
    report_rounds: str

    def rounds(self, phase: Literal["tuning", "report"]) -> str:
        """Return the number of rounds of runs in a phase."""
        return self.tuning_rounds if phase == "tuning" else self.report_rounds


def table_tree(outcome: Outcome, made: Made, costs: Sequence[tuple[float, int]]) -> Tree:
    """Return a table as plain data: numbers by seed, tuning, chosen configurations, verdicts.

    Args:
        outcome: the table.
        made: how the table was made.
        costs: seconds and bytes of each cell's runs, in the order of the cells.
    """
    plan = outcome.plan
    cells = zip(outcome.cells.values(), costs, strict=True)
    return {
        "table": plan.name,
        "scale": plan.scale,
        "answers": plan.answers,
        "made": asdict(made),
        "paper_means": {row: one for row in plan.rows if (one := plan.paper_of(row, None))},
        "units": {metric.name: metric.unit for metric in outcome.metrics},
        "cells": [_cell(outcome, cell, *cost) for cell, cost in cells],
        **verdicts_tree(outcome),
        "plan": plan.model_dump(mode="json"),
    }


def verdicts_tree(outcome: Outcome) -> Tree:
    """Return the part of the data that is derived from the cells: tests, verdicts and notes."""
    return {
        "claims": [_claim(decided) for decided in outcome.claims],
        "controls": [_control(control) for control in outcome.controls],
        "differences": [
            {
                "of": str(difference.better),
                "minus": str(difference.worse),
                **_comparison(difference),
            }
            for difference in outcome.against
        ],
        "notes": list(outcome.notes),
    }


def _claim(decided: TestedClaim) -> Tree:
    return {
        "claim": decided.claim.question,
        "written": decided.claim.text,
        "metric": decided.claim.metric,
        "than": decided.claim.than,
        "source": decided.claim.source,
        "verdict": decided.verdict,
        "p_holm": decided.corrected,
        "seeds_needed": decided.needed and asdict(decided.needed),
        "fragile": list(decided.fragile),
        **_comparison(decided.comparison),
    }


def _control(control: ControlResult) -> Tree:
    gain = control.question.gain
    return {
        "control": control.question.row,
        "of": control.question.of,
        "would_refute": control.question.refutes,
        "reading": control.reading,
        "p_holm": control.corrected,
        "p_holm_of_half": control.corrected_middle,
        "baseline": control.question.baseline,
        "gain": None if gain is None or gain.interval is None else gain.interval.mean,
        "share_of_gain": control.question.share,
        "seeds_needed": control.needed and asdict(control.needed),
        "by_column": dict(control.columns),
        **_comparison(control.question.comparison),
    }


def _cell(outcome: Outcome, cell: CellResult, seconds: float, size: int) -> Tree:
    place, state = cell.place, cell.state
    metrics: dict[str, Any] = {}
    for metric in outcome.metrics:
        side = Side(place.row, place.column)
        interval = outcome.interval(side, metric.name)
        metrics[metric.name] = {
            "by_seed": _by_seed(outcome.by_seed(side, metric.name)),
            **({} if interval is None else _interval(interval)),
        }
    dropped = zip(state.dropped, cell.dropped, strict=True)
    return {
        "row": place.row,
        "column": place.column,
        "phase": state.phase,
        "chosen": state.chosen,
        "choices": {str(seed): config for seed, config in state.choices.items()},
        "tried": [_tried(tried) for tried in state.tried],
        "dropped": [{**asdict(choice), "reason": reason} for choice, reason in dropped],
        "edges": [asdict(edge) for edge in state.edges],
        "metrics": metrics,
        "paper": outcome.plan.paper_of(place.row, place.column),
        "seeds": [
            {
                "seed": result.seed,
                "run": result.key,
                "reason": result.reason,
                **(
                    {}
                    if result.measured is None
                    else result.measured.model_dump(
                        mode="json", exclude={"metrics", "score"}, exclude_defaults=True
                    )
                ),
            }
            for result in cell.seeds
        ],
        "seconds": seconds,
        "bytes": size,
    }


def _tried(tried: TriedConfig) -> Tree:
    return {
        "config": tried.config,
        "objective": tried.objective,
        "scores": {str(seed): score for seed, score in tried.scores.items()},
        "added": tried.added,
    }


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}


def _comparison(comparison: Comparison) -> Tree:
    interval = comparison.interval
    return {
        "differences": _by_seed(comparison.differences),
        "p": comparison.p,
        **({} if interval is None else _interval(interval)),
    }


def _interval(interval: Interval) -> Tree:
    """Return an interval as plain data, without infinite ends."""
    ends = {"low": interval.low, "high": interval.high} if math.isfinite(interval.half) else {}
    return {"mean": interval.mean, "std": interval.std, "n": interval.n, **ends}
