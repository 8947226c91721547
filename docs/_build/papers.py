"""docs/papers.md: every item of the papers with its commands."""

from __future__ import annotations

from _build.templates import render
from fedray.cli.papers import SCALES, numbers_of, read_papers


def papers_page() -> str:
    """Return the page."""
    papers = list(read_papers().values())
    numbers = {paper.title: sum(map(numbers_of, paper.items)) for paper in papers}
    return render(
        "papers",
        papers=papers,
        count=sum(len(paper.items) for paper in papers),
        scales=SCALES,
        numbers=numbers,
        total=sum(numbers.values()),
    )
