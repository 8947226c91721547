"""docs/notebooks/: a page for each notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def notebook_pages(root: Path) -> dict[str, str]:
    """Return a page for each notebook of a checkout, by path."""
    return {
        f"docs/notebooks/{path.stem}.md": "\n".join(_page(path))
        for path in sorted((root / "notebooks").glob("*.ipynb"))
    }


def _page(path: Path) -> Iterator[str]:
    """Yield the texts and the code of a notebook, cell by cell."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        yield f"{text}\n" if cell["cell_type"] == "markdown" else f"```ipython\n{text}\n```\n"
    yield f"This page shows [the notebook](../../notebooks/{path.name}), which is run by a test.\n"
