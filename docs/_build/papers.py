"""docs/papers.md: every item of the papers with its commands."""

from __future__ import annotations

from _build.templates import render
from fedray.cli.papers import SCALES, numbers_of, read_papers


def papers_page() -> str:
    """Return the page."""
    papers = list(read_papers().values())
    return render(
        "papers",
        papers=papers,
        count=sum(len(paper.items) for paper in papers),
        scales=SCALES,
        numbers=sum(numbers_of(item) for paper in papers for item in paper.items),
    )
