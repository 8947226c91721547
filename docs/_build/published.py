"""docs/results/NAME/: the pages of published tables, recomputed from the numbers of their runs.

Tests of claims may change between versions of the package. The runs in table.json never change;
tests, verdicts and pages are computed from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedray.results.pages.page import markdown
from fedray.results.pages.table import LATEX, PAGE, table_latex, table_page
from fedray.results.record import DATA, TableRecord
from fedray.storage.files import sealed

FOLDER = "docs/results"


def published(root: Path) -> dict[str, TableRecord]:
    """Return the published tables by name, with verdicts by this version of the package.

    Raises:
        UserError: if a table.json is damaged or edited.
    """
    folders = sorted((root / FOLDER).glob(f"*/{DATA}"))
    return {path.parent.name: TableRecord.read(path) for path in folders}


def published_pages(tables: Mapping[str, TableRecord]) -> dict[str, str]:
    """Return the files of published tables that are computed from their numbers, by path."""
    files = {}
    for name, record in tables.items():
        text = json.dumps(sealed(record.tree()), separators=(",", ":"))
        files[f"{FOLDER}/{name}/{PAGE}"] = markdown(table_page(record))
        files[f"{FOLDER}/{name}/{LATEX}"] = table_latex(record)
        files[f"{FOLDER}/{name}/{DATA}"] = f"{text}\n"
    return files
