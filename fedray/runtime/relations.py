"""Relations between runs: changes of an experiment's keys that change no number, or only some.

Each holds for every method, also for one of a plug-in. `fedray check` and the fuzzer look at them
on drawn experiments (`draws`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedray import core
from fedray.base.errors import UserError
from fedray.config import Experiment
from fedray.config.files import override
from fedray.runtime.assembly import Assembly
from fedray.runtime.draws import Drawn, Scope, accepted
from fedray.runtime.traces import Trace, compare_traces, serial, trace

Keys: TypeAlias = Mapping[str, Any]
"""Values by dotted key."""


class Relation(NamedTuple):
    """A change of keys, and what it must leave alone.

    Attributes:
        name: what is compared with the experiment.
        change: returns the keys to set; {} if the relation does not apply.
        compares: "all": every number and state; "shared": states, traffic, and the metrics that
            both runs have; "last": the same of the last round alone.
        tolerance: relative and absolute; with 0, numbers are equal bit for bit.
    """

    name: str
    change: Callable[[Experiment], Keys]
    compares: str = "all"
    tolerance: float = 0.0


def _early_join(e: Experiment) -> Keys:
    method = core.algorithms.get(e.algorithm.name)
    begins = method.give is not core.Algorithm.give or method.prepare is not core.Algorithm.prepare
    if begins or e.join.clients or e.data.clients < 2:
        return {}  # round 0 of a method with gifts is without the client
    return {"join.clients": 1, "join.round": 1}


def _undecayed(e: Experiment) -> Keys:
    p: Any = e.optimizer.params
    plain = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    is_plain = e.optimizer.name == "adam" and all(getattr(p, k) == v for k, v in plain.items())
    return {"optimizer": {"name": "adamw", "weight_decay": 0.0}} if is_plain else {}


ONE_CLIP = {"privacy.mode": "local", "privacy.clip_norm": 1e30, "privacy.noise_multiplier": 0.0}
LATE_MILESTONE = {"lr_schedule": {"name": "steps", "milestones": [90_000]}}
RELATIONS: Sequence[Relation] = (
    Relation(
        "more is measured",
        lambda e: {"evaluation.top_k": 2, "evaluation.global_test": not e.evaluation.global_test},
        "shared",
    ),
    Relation(
        "only the last round is tested", lambda e: {"eval_every": 0} if e.eval_every else {}, "last"
    ),
    Relation(
        "no fine-tuning", lambda e: {"finetune_epochs": 0} if e.finetune_epochs else {}, "shared"
    ),
    Relation("a norm that clips no update", lambda e: ONE_CLIP if e.privacy.mode == "none" else {}),
    Relation(
        "a norm that clips no gradient",
        lambda e: {"clip_grad_norm": 1e30} if e.clip_grad_norm is None else {},
        "all",
        1e-4,
    ),
    Relation(
        "clients that could drop out", lambda e: {} if e.faults.drop else {"faults.drop": 1e-12}
    ),
    Relation("a client that joins in round 1", _early_join, "last"),
    Relation(
        "a learning rate that falls after the run",
        lambda e: {} if e.lr_schedule.build().changes else LATE_MILESTONE,
        "shared",
    ),
    Relation(
        "other resources",
        lambda e: {"workers": e.workers + 1, "checkpoint_every": 3, "keep.models": "none"},
    ),
    Relation("AdamW without decay", _undecayed),
)


def check_relation(first: Sequence[Trace], relation: Relation, other: Experiment) -> None:
    """Raise a `Violation` with the first number that differs in a run of a changed experiment."""
    rounds = {one.round for one in first}
    second = [one for one in trace(Assembly(other), serial) if one.round in rounds]
    if relation.compares == "last":
        first, second = first[-1:], second[-1:]
    if relation.compares != "all":
        pairs = [*map(_shared, first, second)]
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
    compare_traces(first, second, relation.tolerance)


def _shared(first: Trace, second: Trace) -> tuple[Trace, Trace]:
    """Return two traces of a round without the metrics that only one of them has."""
    names = first.numbers.keys() & second.numbers.keys()
    one, other = (replace(t, numbers={n: t.numbers[n] for n in names}) for t in (first, second))
    return one, other


def relations_of(
    drawn: Drawn, scope: Scope, seed: int, count: int
) -> Iterator[tuple[Relation, Experiment]]:
    """Yield up to `count` relations that apply to an experiment, in random order.

    Those whose changed experiment is refused do not apply.
    """
    for number in np.random.default_rng(seed).permutation(len(RELATIONS)):
        relation, other = RELATIONS[number], None
        values = relation.change(drawn.experiment)
        with suppress(UserError):
            other = accepted(override(drawn.tree, values.items()), scope) if values else None
        if other is not None:
            yield relation, other
            count -= 1
        if not count:
            return
