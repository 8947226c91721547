"""docs/results/NAME/: the pages of published tables, recomputed from the numbers of their cells.

Tests of claims may change between versions of the package. The numbers by seed in table.json never
change; tests, verdicts and pages are computed from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedray.config import Tree
from fedray.storage.json_files import sealed
from fedray.results.pages.page import markdown
from fedray.results.pages.record import Made, verdicts_tree
from fedray.results.pages.table import FIGURE, LATEX, PAGE, latex, page, with_figure
from fedray.studies.recompute import outcome_of
from fedray.studies.store import DATA, check_table

FOLDER = "docs/results"


def published(root: Path) -> dict[str, Tree]:
    """Return the published tables by name, with verdicts by this version of the package.

    Raises:
        UserError: if a table.json is damaged or edited.
    """
    folders = sorted((root / FOLDER).glob(f"*/{DATA}"))
    return {path.parent.name: _decided_again(check_table(path)) for path in folders}


def published_pages(root: Path, tables: Mapping[str, Tree]) -> dict[str, str]:
    """Return the files of published tables that are computed from their numbers, by path."""
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
