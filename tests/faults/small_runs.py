"""Small runs in this process with one client that misbehaves, or is absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedray.federation import Federation
from fedray.runtime.assembly import Assembly
from fedray.runtime.traces import Trace, serial, trace

VICTIM, ROUND = 1, 2
"""The client that misbehaves, and when."""
TREE: Mapping[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "eval_every": 2,
    "data": {"clients": 4, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"group": "mlp", "feature_dim": 16},
    "text": {"encoder": {"name": "random"}, "style": "handcrafted"},
}


class WithoutVictim(Federation):
    """A federation in which the victim does not take part in `ROUND`."""

    def _cohort(self, number: int) -> list[int]:
        return [c for c in super()._cohort(number) if (c, number) != (VICTIM, ROUND)]


def outcome_of(assembly: Assembly, *, absent: bool = False) -> tuple[Trace, list[tuple[int, str]]]:
    """Run; return the last round without its traffic, and what happened to clients."""
    kind = WithoutVictim if absent else Federation
    last = trace(assembly, serial, make_federation=kind)[-1]
    numbers = dict(last.numbers)
    events = [(event.client, event.what) for event in numbers.pop("events")]
    for sizes in ("uploads", "downloads"):
        del numbers[sizes]
    return Trace(last.round, numbers, last.tensors), events
