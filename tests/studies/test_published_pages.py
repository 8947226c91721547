"""The published pages are what the renderer makes of the numbers in their table.json."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedray.compare.paired import Comparison, Side, compare
from fedray.records import Metric
from fedray.render.page import markdown
from fedray.render.record import Made
from fedray.render.table import latex, page
from fedray.studies.agenda import CellState, Dropped
from fedray.studies.outcome import (
    CellResult,
    Outcome,
    _against_first,
    _aggregates,
    _verdicts,
    by_seed,
)
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.space import Edge

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MEASURED = ("values", "round", "seconds", "bytes", "partition", "data")


def cell_of(tree: dict[str, Any]) -> CellResult:
    """Return a cell as it was recorded."""
    state = CellState(
        tree["phase"],
        [SimpleNamespace(**tried) for tried in tree["tried"]],
        {} if tree["chosen"] is None else {each["seed"]: tree["chosen"] for each in tree["seeds"]},
        [Edge(**edge) for edge in tree["edges"]],
        (),
        [Dropped(each["config"], each["seeds"]) for each in tree["dropped"]],
    )
    seeds = [
        SimpleNamespace(
            seed=each["seed"],
            reason=each["reason"],
            measured=SimpleNamespace(**{name: each.get(name) for name in MEASURED})
            if "values" in each
            else None,
        )
        for each in tree["seeds"]
    ]
    reasons = [each["reason"] for each in tree["dropped"]]
    return CellResult(Place(tree["row"], tree["column"]), state, seeds, reasons, [])


def outcome_of(tree: dict[str, Any]) -> Outcome:
    """Return a table whose claims are decided again, from the recorded numbers of each seed."""
    plan = StudyPlan.model_validate(tree["plan"])
    metrics = {name: Metric(name, tree["units"][name]) for name in plan.metrics}
    cells = {cell.place: cell for cell in map(cell_of, tree["cells"])}

    def against(
        better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        a = by_seed(cells, plan, better, metrics[metric])
        b = by_seed(cells, plan, worse, metrics[than or metric])
        differences = {seed: a[seed] - b[seed] - margin for seed in a if seed in b}
        size = max(map(abs, [*a.values(), *b.values()]), default=1.0)
        return compare(better, worse, differences, plan.confidence, size)

    claims, controls = _verdicts(plan, against)
    return Outcome(
        plan,
        cells,
        list(metrics.values()),
        claims,
        controls,
        _against_first(plan, against),
        _aggregates(cells, plan, next(iter(metrics.values()))),
        tree["notes"],
    )


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("*/")), ids=lambda folder: folder.name)
def test_a_published_page_has_the_recorded_numbers_and_verdicts(folder):
    tree = json.loads((folder / "table.json").read_text())
    outcome = outcome_of(tree)
    assert [each.verdict for each in outcome.claims] == [c["verdict"] for c in tree["claims"]]
    assert [each.corrected for each in outcome.claims] == [c["p_holm"] for c in tree["claims"]]
    assert [each.reading for each in outcome.controls] == [c["reading"] for c in tree["controls"]]
    made = Made(**{"commits": [], **tree["made"]})
    published = (folder / "table.md").read_text()
    figure = "![the table as a figure](figure.png)\n\n"
    assert markdown(page(outcome, made)) == published.replace(figure, "")
    assert latex(outcome) == (folder / "table.tex").read_text()
