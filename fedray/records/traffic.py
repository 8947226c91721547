"""How much travelled, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Traffic:
    """Parameters and bytes of one or many payloads in one direction, by kind.

    Attributes:
        params: numbers that travelled ("weights", "prototypes", ...); a mean over runs may be a
            fraction.
        bytes: their size.
    """

    params: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(_sum(self.params, other.params), _sum(self.bytes, other.bytes))

    @staticmethod
    def total(parts: Iterable[Traffic]) -> Traffic:
        """The sum of many, as `+` gives it one after the other."""
        params: dict[str, float] = {}
        size: dict[str, float] = {}
        for part in parts:
            for kind, count in part.params.items():
                params[kind] = params.get(kind, 0) + count
            for kind, count in part.bytes.items():
                size[kind] = size.get(kind, 0) + count
        return Traffic(dict(sorted(params.items())), dict(sorted(size.items())))

    @property
    def total_params(self) -> float:
        """Parameters of all kinds."""
        return sum(self.params.values())

    @property
    def total_bytes(self) -> float:
        """Bytes of all kinds."""
        return sum(self.bytes.values())


def _sum(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {kind: a.get(kind, 0) + b.get(kind, 0) for kind in sorted({*a, *b})}
