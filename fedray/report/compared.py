"""What a report compares: rows, metrics, who is compared with whom, and what to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedray.errors import UserError, nearest
from fedray.records import Metric
from fedray.report.comparable import blocks_of, methods_differ, why_apart
from fedray.report.runs import At, Group, Stat
from fedray.report.statistics import holm_of_all, p_value
from fedray.report.unfair import warnings_of

ALPHA = 0.05
"""A difference whose corrected p is above this is within the spread."""


@dataclass(frozen=True)
class Row:
    """A comparison of two groups.

    Attributes:
        member: what is compared.
        base: with what.
        difference: seed by seed; None without a seed that both have.
        p: corrected for the number of comparisons, by Holm; None for fewer than two seeds.
    """

    member: Group
    base: Group
    difference: Stat | None
    p: float | None

    @property
    def reading(self) -> str:
        """What the difference says."""
        if self.difference is None:
            return "no seed in common"
        if self.p is None:
            return "one seed: no spread"
        if self.p > ALPHA:
            return "within the spread"
        return "beyond the spread"


@dataclass(frozen=True)
class Compared:
    """Groups that are reported together.

    Attributes:
        groups: all rows, in the table's order.
        metrics: what is shown, the first one ranks.
        at: whether best or last values are ranked and compared.
        base: the method or label that the others are compared with; None: each block's first.
        notes: what was left out.
    """

    groups: Sequence[Group]
    metrics: Sequence[Metric]
    at: At
    base: str | None = None
    notes: Sequence[str] = ()

    @property
    def metric(self) -> Metric:
        """What ranks."""
        return self.metrics[0]

    @cached_property
    def blocks(self) -> list[list[Group]]:
        """The groups that may be compared with each other."""
        return blocks_of(self.groups)

    @property
    def tables(self) -> list[list[Group]]:
        """The groups of each table: a block each, but for a grid in which nothing is comparable."""
        whole = len(self.blocks) == len(self.groups)
        return [list(self.groups)] if whole else self.blocks

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before comparing."""
        apart = why_apart(self.blocks)
        methods = dict.fromkeys(said for block in self.blocks for said in methods_differ(block))
        return [*warnings_of(self.groups), *apart, *methods, *self.notes]

    def check_base(self) -> None:
        """Make sure that there is what the others are to be compared with.

        Raises:
            UserError: when there is not.
        """
        if not any(_is(member, self.base) for member in self.groups):
            known = [member.label for member in self.groups]
            raise UserError(
                f"--base {self.base}: there is no such method.{nearest(str(self.base), known)}"
            )

    def base_of(self, block: Sequence[Group]) -> Group:
        """What the others of a block are compared with."""
        return next((member for member in block if _is(member, self.base)), block[0])

    def rows(self, block: Sequence[Group]) -> list[Row]:
        """The others of a block against its base, on the metric that ranks."""
        base = self.base_of(block)
        found = [(m, *self._against(m, base)) for m in block if m is not base]
        ps = holm_of_all([p for _, _, p in found])
        return [Row(m, base, stat, p) for (m, stat, _), p in zip(found, ps, strict=True)]

    def _against(self, member: Group, base: Group) -> tuple[Stat | None, float | None]:
        """The differences over seeds that both have, and their p before correction."""
        mine, others = (g.by_seed(self.metric.name, self.at) for g in (member, base))
        both = [seed for seed in mine if seed in others]
        if not both:
            return None, None
        differences = [mine[seed] - others[seed] for seed in both]
        size = max(abs(mine[seed]) for seed in both)
        return Stat.of(differences), p_value(differences, size)


def _is(member: Group, name: str | None) -> bool:
    return name is None or name in (member.label, member.method)
