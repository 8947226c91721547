"""Relations between runs: changes of an experiment's keys that change no number, or only some.

Each holds for every method, also for one of a plug-in. `fedray check` and the fuzzer look at them
on drawn experiments (`draws`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedray import core
from fedray.config import Experiment
from fedray.config.files import override
from fedray.errors import UserError
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
            both runs have; "last": the same of the last round alone; "first": the same of the
            rounds that both runs have.
        tolerance: relative and absolute; with 0, numbers are equal bit for bit.
    """

    name: str
    change: Callable[[Experiment], Keys]
    compares: str = "all"
    tolerance: float = 0.0


def _evaluate_more(e: Experiment) -> Keys:
    return {"evaluation.top_k": 2, "evaluation.global_test": not e.evaluation.global_test}


def _evaluate_less(e: Experiment) -> Keys:
    return {} if e.eval_every == 0 else {"eval_every": 0}


def _fine_tune(e: Experiment) -> Keys:
    return {"finetune_epochs": 0} if e.finetune_epochs else {}


def _one_clip(e: Experiment) -> Keys:
    if e.privacy.mode != "none":
        return {}
    return {"privacy.mode": "local", "privacy.clip_norm": 1e30, "privacy.noise_multiplier": 0.0}


def _huge_gradients(e: Experiment) -> Keys:
    return {} if e.clip_grad_norm is not None else {"clip_grad_norm": 1e30}


def _no_drop(e: Experiment) -> Keys:
    return {} if e.faults.drop else {"faults.drop": 1e-12}


def _early_join(e: Experiment) -> Keys:
    method = core.algorithms.get(e.algorithm.name)
    begins = method.give is not core.Algorithm.give or method.prepare is not core.Algorithm.prepare
    if begins or e.join.clients or e.data.clients < 2:
        return {}  # round 0 of a method with gifts is without the client
    return {"join.clients": 1, "join.round": 1}


def _late_milestone(e: Experiment) -> Keys:
    if e.lr_schedule.build().changes:
        return {}
    return {"lr_schedule": {"name": "steps", "milestones": [90_000]}}


def _resources(e: Experiment) -> Keys:
    return {"workers": e.workers + 1, "checkpoint_every": 3, "keep.models": "none"}


def _undecayed(e: Experiment) -> Keys:
    return {"optimizer": {"name": "adamw", "weight_decay": 0.0}} if _is_plain_adam(e) else {}


def _is_plain_adam(e: Experiment) -> bool:
    p: Any = e.optimizer.params
    plain = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    return e.optimizer.name == "adam" and all(getattr(p, k) == v for k, v in plain.items())


RELATIONS: Sequence[Relation] = (
    Relation("more is measured", _evaluate_more, "shared"),
    Relation("only the last round is tested", _evaluate_less, "last"),
    Relation("no fine-tuning", _fine_tune, "shared"),
    Relation("a norm that clips no update", _one_clip),
    Relation("a norm that clips no gradient", _huge_gradients, "all", 1e-4),
    Relation("clients that could drop out", _no_drop),
    Relation("a client that joins in round 1", _early_join, "last"),
    Relation("a learning rate that falls after the run", _late_milestone, "shared"),
    Relation("other resources", _resources),
    Relation("AdamW without decay", _undecayed),
)


def changed(drawn: Drawn, relation: Relation, scope: Scope) -> Experiment | None:
    """Return the changed experiment; None if the relation does not apply or is refused."""
    values = relation.change(drawn.experiment)
    if not values:
        return None
    try:
        return accepted(override(drawn.tree, values.items()), scope)
    except UserError:
        return None


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
    pick = [{n: t.numbers[n] for n in names} for t in (first, second)]
    return (
        Trace(first.round, pick[0], first.tensors),
        Trace(second.round, pick[1], second.tensors),
    )


def relations_of(
    drawn: Drawn, scope: Scope, seed: int, count: int
) -> Iterator[tuple[Relation, Experiment]]:
    """Yield up to `count` relations that apply to an experiment, in random order."""
    found = 0
    for number in np.random.default_rng(seed).permutation(len(RELATIONS)):
        relation = RELATIONS[number]
        other = changed(drawn, relation, scope) if found < count else None
        if other is not None:
            found += 1
            yield relation, other
