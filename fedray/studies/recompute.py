"""Recompute the verdicts of a published table from the numbers of its seeds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

from fedray.config import Tree
from fedray.results.pages.record import verdicts_tree
from fedray.storage.metric import Metric
from fedray.studies.cell import CellState, DroppedChoice, TriedConfig
from fedray.studies.outcome import CellResult, Outcome, SeedResult, conclude
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.space import Edge

MEASURED = ("values", "round", "seconds", "bytes", "partition", "data", "test_images")


def wrong_verdicts(tree: Tree) -> list[str]:
    """Return the claims of a table.json whose verdicts do not follow from its numbers.

    Args:
        tree: a tree written by this version of the package; other versions may test differently.
    """
    recomputed = json.loads(json.dumps(verdicts_tree(outcome_of(tree))["claims"]))
    wrong = [
        old["claim"] for old, new in zip(tree["claims"], recomputed, strict=False) if old != new
    ]
    return wrong + ["the number of claims"] * (len(recomputed) != len(tree["claims"]))


def outcome_of(tree: Tree) -> Outcome:
    """Recompute the outcome of a table from the recorded numbers of each seed."""
    plan = StudyPlan.model_validate(tree["plan"])
    metrics = [Metric(name, tree["units"][name]) for name in plan.metrics]
    cells = {cell.place: cell for cell in map(_cell_of, tree["cells"])}
    notes = [note for note in tree["notes"] if note not in plan.report.look_notes()]
    return conclude(plan, cells, metrics, notes)


def _cell_of(tree: Tree) -> CellResult:
    state = CellState(
        tree["phase"],
        cast("list[TriedConfig]", [SimpleNamespace(**t) for t in tree["tried"]]),
        {int(seed): config for seed, config in tree["choices"].items()},
        [Edge(**edge) for edge in tree["edges"]],
        (),
        [DroppedChoice(choice["config"], choice["seeds"]) for choice in tree["dropped"]],
    )
    seeds = [
        SimpleNamespace(
            seed=seed["seed"],
            reason=seed["reason"],
            measured=SimpleNamespace(**{name: seed.get(name) for name in MEASURED})
            if "values" in seed
            else None,
        )
        for seed in tree["seeds"]
    ]
    reasons = [choice["reason"] for choice in tree["dropped"]]
    place = Place(tree["row"], tree["column"])
    return CellResult(place, state, cast("list[SeedResult]", seeds), reasons, [])
