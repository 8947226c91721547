"""docs/papers.md: every item of the papers, a line each."""

from __future__ import annotations

from _build.templates import render
from fedray.cli.papers import SCALES, numbers_of, read_papers


def papers_page() -> str:
    """Return the page."""
    papers = read_papers()
    numbers = {paper.title: numbers_of(*paper.items) for paper in papers.values()}
    return render(
        "papers",
        papers=papers,
        count=sum(len(paper.items) for paper in papers.values()),
        scales=SCALES,
        numbers=numbers,
        total=sum(numbers.values()),
    )
