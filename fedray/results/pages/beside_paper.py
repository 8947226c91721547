"""Each cell of a table at scale `printed` beside the paper's number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedray.results.pages.page import Section
from fedray.results.paired import Side
from fedray.results.record import TableRecord

if TYPE_CHECKING:
    from fedray.storage.metric import Metric

HEADER = ["row", "column", "ours", "seeds", "paper", "difference", "within"]
CAPTION = (
    "Ours is the mean over seeds, with the smallest and largest seed beside it. within: whether "
    "the range of our seeds meets the paper's number, with its own spread if it prints one."
)


def beside_paper(record: TableRecord) -> Section:
    """Return the comparison with the paper, cell by cell; empty without numbers of both."""
    plan, metric = record.plan, record.shown[0]
    columns = [*plan.columns, *([None] if len(plan.columns) > 1 else [])]
    rows, within = [], []
    for row in plan.rows:
        for column in columns:
            printed = plan.paper_of(row, column)
            values = list(record.by_seed(Side(row, column), metric.name).values())
            if printed is None or not values:
                continue
            within.append(_meet(values, printed))
            names = [plan.rows[row].label, *([column or "mean"] if len(columns) > 1 else [])]
            rows.append([*names, *_numbers(values, printed, metric), "yes" if within[-1] else "no"])
    header = HEADER if len(columns) > 1 else [HEADER[0], *HEADER[2:]]
    text = f"{sum(within)} of {len(within)} printed numbers lie within the spread of our seeds."
    return Section("Beside the paper", (), header, rows, [f"{text} {CAPTION}"] if rows else [])


def _meet(values: list[float], printed: tuple[float, float | None]) -> bool:
    """Return True if the range of the seeds meets the paper's mean, widened by its spread."""
    mean, spread = printed[0], printed[1] or 0.0
    return min(values) <= mean + spread and mean - spread <= max(values)


def _numbers(values: list[float], printed: tuple[float, float | None], metric: Metric) -> list[str]:
    digits = ".2f" if metric.is_share else ".4g"
    mean, spread = printed
    ours = sum(values) / len(values)
    return [
        f"{ours:{digits}}",
        f"{min(values):{digits}} to {max(values):{digits}}",
        f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}",
        f"{ours - mean:+{digits}}",
    ]
