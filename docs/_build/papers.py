"""docs/papers.md: every item of the papers with its commands."""

from __future__ import annotations

from _build.templates import render
from fedray.cli.papers import MEANINGS, SCALES, read_papers


def papers_page() -> str:
    """Return the page."""
    papers = list(read_papers().values())
    return render(
        "papers",
        papers=papers,
        count=sum(len(paper.items) for paper in papers),
        scales=SCALES,
        meanings=MEANINGS,
        numbers=sum(item.numbers for paper in papers for item in paper.items),
    )
