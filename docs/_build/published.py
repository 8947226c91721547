"""Published tables, made again from the numbers of their cells: docs/results/NAME/.

A new version of the package may test claims in another way. The numbers by seed in table.json stay
what they were; tests, verdicts and pages follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from fedray.config import Tree
from fedray.records import Metric, sealed
from fedray.render.page import markdown
from fedray.render.record import Made, verdicts_tree
from fedray.render.table import FIGURE, LATEX, PAGE, latex, page, with_figure
from fedray.studies.agenda import CellState, Dropped
from fedray.studies.looks import Looks
from fedray.studies.outcome import CellResult, Outcome, conclude
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.space import Config, Edge
from fedray.studies.store import DATA, check_table

FOLDER = "docs/results"
MEASURED = ("values", "round", "seconds", "bytes", "partition", "data", "test_images")


def published(root: Path) -> dict[str, Tree]:
    """Return the tables that were run by name, with verdicts by this version of the package.

    Raises:
        UserError: when a table.json is damaged or edited.
    """
    folders = sorted((root / FOLDER).glob(f"*/{DATA}"))
    return {path.parent.name: _decided_again(check_table(path)) for path in folders}


def published_pages(root: Path, tables: Mapping[str, Tree]) -> dict[str, str]:
    """Return the files of published tables that follow from their numbers, by path."""
    files = {}
    for name, tree in tables.items():
        outcome = outcome_of(tree)
        sections = page(outcome, Made(**{"commits": [], **tree["made"]}))
        text = json.dumps(sealed(tree), separators=(",", ":"))
        figure = root / FOLDER / name / FIGURE
        files[f"{FOLDER}/{name}/{PAGE}"] = markdown(with_figure(sections, figure))
        files[f"{FOLDER}/{name}/{LATEX}"] = latex(outcome)
        files[f"{FOLDER}/{name}/{DATA}"] = f"{text}\n"
    return files


def _decided_again(tree: Tree) -> Tree:
    return {**tree, **verdicts_tree(outcome_of(tree))}


def outcome_of(tree: Tree) -> Outcome:
    """Return a table whose claims are decided again, from the recorded numbers of each seed."""
    plan = StudyPlan.model_validate(tree["plan"])
    metrics = [Metric(name, tree["units"][name]) for name in plan.metrics]
    cells = {cell.place: cell for cell in map(_cell_of, tree["cells"])}
    looks = Looks.model_validate(tree["looks"])
    notes = [note for note in tree["notes"] if note not in looks.notes(plan)]
    return conclude(plan, cells, metrics, looks, notes)


def _choices(tree: Tree) -> dict[int, Config]:
    """Return what each seed chose; tables that were tuned once had one choice."""
    if tree["chosen"] is None:
        return {}
    once = {str(each["seed"]): tree["chosen"] for each in tree["seeds"]}
    return {int(seed): config for seed, config in tree.get("choices", once).items()}


def _cell_of(tree: Tree) -> CellResult:
    state = CellState(
        tree["phase"],
        [SimpleNamespace(**tried) for tried in tree["tried"]],
        _choices(tree),
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
