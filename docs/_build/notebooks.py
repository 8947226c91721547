"""docs/notebooks/: a page for each notebook, with its stored outputs, and the figures in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGES = "docs/notebooks"


def notebook_pages(root: Path) -> dict[str, str]:
    """Return the page and the figures (SVG) of each notebook of a checkout, by path."""
    files: dict[str, str] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        figures: dict[str, str] = {}
        text = "\n".join(_page(path, figures))
        files |= {f"{PAGES}/{path.stem}.md": text} | figures
    return files


def _page(path: Path, figures: dict[str, str]) -> Iterator[str]:
    """Yield the texts, code and outputs of a notebook, cell by cell; add its figures by path."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{text}\n"
            continue
        yield f"```ipython\n{text}\n```\n"
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"{path.stem}_{len(figures) + 1}.svg"
                figures[f"{PAGES}/{name}"] = "".join(data["image/svg+xml"])
                yield f"![a figure of the cell above]({name})\n"
            elif shown := _text(output, data):
                yield f"```text\n{shown}\n```\n"
    yield f"This page shows [the notebook](../../notebooks/{path.name}), which is run by a test.\n"


def _text(output: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return what a cell printed, or the text of its value; warnings and progress are left out."""
    if output.get("name") == "stderr":
        return ""
    return "".join(output.get("text", data.get("text/plain", ""))).rstrip()
