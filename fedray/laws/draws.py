"""Random experiments that the project accepts, for the fuzzer and `fedray check`.

`draw` chooses keys and values from the schema itself: bounds, choices, registries, and a table of
interesting values. It repeats the draw until the experiment resolves, so that the project's own
checks are the only rules about what fits together.

`RELATIONS` are changes of an experiment's keys that change no number, or only some. Each holds for
every method, also for one of a plug-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import torch
from numpy.random import Generator
from pydantic.fields import FieldInfo

from fedray import core
from fedray.base.errors import UserError, one_line
from fedray.config import Chosen, Experiment, Frozen, Tree
from fedray.config.files import merge, override
from fedray.config.plugins import Plugin, use
from fedray.config.registry import parameters_of, registry
from fedray.core.optimizers import Adam
from fedray.laws.traces import Trace, compare_traces, serial, trace
from fedray.models.clip import small_clip_folder
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree

DIGITS: Tree = {"source": "digits"}
SMALL_CLIP: Tree = {"source": "digits", "image_size": 32}
SHAPES: Tree = {"source": "shapes", "image_size": 16}

INTERESTING: Mapping[str, Sequence[Any]] = {
    "rounds": (1, 2, 3),
    "local_epochs": (1, 2),
    "batch_size": (1, 4, 7, 16, 1000),
    "privacy.mode": ("central", "local"),
    "lr": (0.001, 0.02, 0.05, 0.1, 0.3),
    "participation": (0.3, 0.5, 0.67, 1.0),
    "clip_grad_norm": (0.01, 0.5, 1e3),
    "stacked": (1, 2, 3, 8),
    "eval_every": (0, 1, 2),
    "finetune_epochs": (0, 1, 2),
    "checkpoint_every": (0, 1, 2),
    "data.clients": (1, 2, 3, 4, 5),
    "data.samples": (40, 60, 90, 130),
    "data.imbalance": (1.0, 3.0, 10.0),
    "data.shots": (3, 8),
    "data.test_samples": (10, 40),
    "data.test_fraction": (0.1, 0.25, 0.5),
    "data.validation_fraction": (None, 0.1, 0.2, 0.4),
    "data.channels": (1, 3),
    "faults.drop": (0.0, 0.2, 0.5, 1.0),
    "join.clients": (1, 2),
    "join.round": (1, 2, 3, 9),
    "wire.up_bits": (2, 4, 8, 32),
    "privacy.clip_norm": (0.001, 0.1, 1.0, 1e6),
    "privacy.noise_multiplier": (0.0, 0.01, 1.0, 3.0),
    "privacy.delta": (1e-5, 0.01),
    "evaluation.top_k": (None, 2, 5),
    "model.feature_dim": (None, 8, 16, 200),
    "model.projector": (None, 8),
    "alpha": (0.1, 0.5, 100.0),
    "min_samples": (1, 3, 10),
    "classes_per_client": (1, 2, 3, 5),
    "milestones": ((1,), (1, 2)),
    "momentum": (0.0, 0.5, 0.9),
    "weight_decay": (0.0, 1e-3, 0.1),
    "warmup_rounds": (0, 1, 2),
    "fraction": (0.1, 0.3),
}
"""Values to draw, by dotted key or by the name of a parameter; others follow from the schema."""
NUMBERS = (0, 1, 2, 3, 5, 16, 0.001, 0.1, 0.25, 0.5, 0.9, 1.5, 10)
"""Values of parameters without a row in `INTERESTING`, if the bounds allow them."""
CHEAP: Mapping[str, Sequence[int]] = {
    "server_epochs": (1, 2),
    "public_epochs": (1, 2),
    "private_epochs": (1,),
    "target_steps": (2, 5),
    "inner_steps": (2, 1, 3),
    "length": (2, 3),
    "cluster_rounds": (1,),
    "blocks": (0,),
    "per_epochs": (1, 2),
    "head_epochs": (1, 0, 2),
}
"""Small values of hyper-parameters that decide how long a round takes; always drawn from here."""
TELLING = ("alpha",)
"""Further parameters that are always drawn: a partition's skew, which its default hardly bounds."""
NOT_DRAWN = (
    "name", "scale", "algorithm", "seed", "plugins", "threads", "workers", "cpus", "gpus",
    "server_gpus",
    "faults.max_failures", "faults.start_timeout_s",
    "data.source", "data.root", "data.download",
    "data.split", "data.classes", "data.image_size", "data.resize", "model.group",
    "model.clip", "model.pretrained", "text.",
)  # fmt: skip
"""Keys, or sections with a dot, that need files, choose a machine, or are drawn elsewhere."""
TOGETHER: Mapping[str, Sequence[str]] = {
    "privacy.mode": (
        "privacy.clip_norm",
        "privacy.noise_multiplier",
        "privacy.delta",
        "participation",
    ),
    "join.clients": ("join.round",),
    "data.novel": ("data.test",),
    "data.every_domain": ("data.test",),
    "data.evolution": ("data.validation_fraction",),
    "finetune_epochs": ("data.validation_fraction",),
    "stacked": ("optimizer", "clip_grad_norm"),
}
"""Keys that are legal, or say most, only with others, which are then drawn, too."""
ALWAYS = ("data.partition",)
"""Keys that every experiment sets, because their defaults say little."""
FOLLOWING = ("privacy.clip_norm", "privacy.noise_multiplier", "privacy.delta", "join.round")
"""Keys that are drawn with others alone."""
BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}
"""The bounds that a field may have."""
COUNTS = (2, 4, 6, 9, 13)
"""Numbers of keys that an experiment sets besides its data, network and method."""


@dataclass(frozen=True)
class Scope:
    """What experiments are drawn from.

    Attributes:
        methods: names of methods; all registered ones if empty.
        data: sections `data`, of which one is drawn; for methods around a CLIP, those of 32 pixels.
        networks: values of `model.group`.
        plugins: the plug-ins of further entries.
    """

    methods: Sequence[str] = ()
    data: Sequence[Tree] = (DIGITS, DIGITS, SHAPES)
    clip_data: Sequence[Tree] = (SMALL_CLIP,)
    networks: Sequence[str] = ("mlp", "cnn2", "cnn3", "digits")
    plugins: Sequence[Plugin] = ()


@dataclass(frozen=True)
class Drawn:
    """A drawn experiment.

    Attributes:
        seed: the number that it was drawn from.
        tree: the keys that it sets, as an experiment's file does.
        chosen: the dotted keys that were drawn one by one, and may be left out.
        experiment: the resolved experiment.
        refusals: what the project said about earlier attempts.
    """

    seed: int
    tree: Tree
    chosen: Sequence[str]
    experiment: Experiment
    refusals: Sequence[str] = ()


def draw(seed: int, scope: Scope | None = None) -> Drawn:
    """Draw an experiment that resolves, and whose data, models and server the project accepts.

    Args:
        seed: the number that determines the result.
        scope: what to draw from.
    """
    scope, random, refusals = scope or Scope(), np.random.default_rng(seed), list[str]()
    use(scope.plugins)
    methods = sorted(scope.methods or core.algorithms.names())
    method = one_of(random, methods)
    while True:
        tree, chosen = _tree(method, scope, random)
        try:
            return Drawn(seed, tree, chosen, accepted(tree, scope), refusals)
        except UserError as error:
            refusals.append(one_line(error))


def accepted(tree: Tree, scope: Scope) -> Experiment:
    """Resolve an experiment, and build its data, models and server as a run would.

    Raises:
        UserError: if the project refuses the experiment before its first round.
    """
    use(scope.plugins)
    plugins = [vars(plugin) for plugin in scope.plugins]
    experiment = from_tree({**tree, "plugins": plugins} if plugins else tree)
    assembly = Assembly(experiment)
    server = assembly.server(torch.device("cpu"))
    assembly.algorithm.init_server(server)
    return experiment


def _tree(method: str, scope: Scope, random: Generator) -> tuple[Tree, list[str]]:
    """Return the tree of an experiment with a few drawn keys, and these keys."""
    algorithm = core.algorithms.get(method)
    requires = algorithm.requires
    data = one_of(random, [*(scope.clip_data if requires.prompts else scope.data)])
    tree: Tree = {
        "seed": int(random.integers(1000)),
        "rounds": one_of(random, INTERESTING["rounds"]),
        "local_epochs": 1,
        "batch_size": 16,
        "lr": 0.05,
        "data": {"clients": 3, "samples": 60 if requires.prompts else 90, **data},
        "algorithm": {"name": method, **_parameters(algorithm, random)},
        "model": {} if requires.prompts else {"group": one_of(random, [*scope.networks])},
    }
    tree = merge(required(algorithm), tree)
    fields = {key: info for key, info in schema_keys(Experiment) if not _is_left_out(key)}
    leading = sorted(fields.keys() - {*ALWAYS, *FOLLOWING})
    first = [*ALWAYS, *map(str, random.permutation(leading)[: one_of(random, COUNTS)])]
    chosen = [key for name in first for key in (name, *TOGETHER.get(name, ()))]
    chosen = [key for key in dict.fromkeys(chosen) if key in fields]
    values = [(key, _value(key, fields[key], random)) for key in chosen]
    return override(tree, values), chosen


def one_of(random: Generator, values: Sequence[Any]) -> Any:
    """Return one of the values."""
    return values[int(random.integers(len(values)))]


def required(method: type[core.Algorithm]) -> Tree:
    """Return the keys without which a method is refused."""
    requires, tree = method.requires, Tree(data={})
    if requires.prompts:
        tree["data"] = {"image_size": 32, "samples": 60}
    if requires.public:
        tree["data"]["public"] = {"name": "share", "fraction": 0.2}
    if requires.validation:
        tree["data"]["validation_fraction"] = 0.3
    if requires.text:
        encoder = {"name": "openclip", "path": str(small_clip_folder())}
        tree["text"] = {"encoder": encoder, "style": "handcrafted"}
        tree["model"] = {"feature_dim": 256}
    return tree


def schema_keys(model: type[Frozen], section: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted keys of a typed model and their fields."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Frozen):
            yield from schema_keys(info.annotation, f"{section}{name}.")
        else:
            yield f"{section}{name}", info


def _is_left_out(key: str) -> bool:
    return any(key == name or (name[-1] == "." and key.startswith(name)) for name in NOT_DRAWN)


def _parameters(model: type[Frozen], random: Generator) -> Tree:
    """Return values of some parameters of an entry; those that cost time are always set."""
    tree = {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        if key in CHEAP:
            tree[key] = one_of(random, CHEAP[key])
        elif info.is_required() or key in TELLING or random.random() < 0.4:
            tree[key] = _value(key, info, random)
    return tree


def _value(key: str, info: FieldInfo, random: Generator) -> Any:
    """Return a value of a key, or its default if the schema does not say what there may be."""
    if key in INTERESTING:
        bounds = info.metadata
        return one_of(random, [v for v in INTERESTING[key] if _is_within(v, bounds)])
    chosen = next((mark for mark in info.metadata if isinstance(mark, Chosen)), None)
    if chosen is not None:
        return _component(chosen.kind, random)
    values = [*_values(info.annotation, info.metadata)]
    return one_of(random, values) if values else info.get_default(call_default_factory=True)


def _component(kind: str, random: Generator) -> Tree:
    """Return an entry of a registry with some of its parameters."""
    name = one_of(random, sorted(registry(kind).names()))
    model = parameters_of(registry(kind).get(name))
    tree = {"name": name, **({} if model is None else _parameters(model, random))}
    if kind == "data evolution" and name != "none":
        phase = {"round": 2, "partition": _component("partition", random)}
        tree["phases"] = [phase]
    if kind == "public data" and name != "none":
        tree = {"name": "share", "fraction": 0.2, "labelled": one_of(random, (True, False))}
    return tree


def _values(annotation: Any, bounds: Sequence[Any]) -> Iterator[Any]:
    """Yield the values of a type that are worth drawing, within bounds."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        infos = [mark.metadata if isinstance(mark, FieldInfo) else [mark] for mark in args[1:]]
        yield from _values(args[0], [*bounds, *(mark for marks in infos for mark in marks)])
    elif origin in (Union, UnionType):
        for arg in args:
            yield from _values(arg, bounds)
    elif origin is Literal:
        yield from args
    elif annotation is type(None):
        yield None
    elif annotation is bool:
        yield from (False, True)
    elif annotation in (int, float):
        kind = annotation
        yield from (kind(n) for n in NUMBERS if kind(n) == n and _is_within(n, bounds))


def _is_within(value: Any, bounds: Iterable[Any]) -> bool:
    """Return True if a value is no number, or within the bounds of a field."""
    limits = [(is_inside, getattr(b, n, None)) for b in bounds for n, is_inside in BOUNDS.items()]
    is_number = isinstance(value, int | float)
    return not is_number or all(of(value, limit) for of, limit in limits if limit is not None)


# --- relations -----------------------------------------------------------------------------------


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
    change: Callable[[Experiment], Mapping[str, Any]]
    compares: str = "all"
    tolerance: float = 0.0


def _early_join(e: Experiment) -> Mapping[str, Any]:
    method = core.algorithms.get(e.algorithm.name)
    gives = bool(method.gifts) or method.give is not core.Algorithm.give
    begins = gives or method.prepare is not core.Algorithm.prepare
    if begins or e.join.clients or e.data.clients < 2:
        return {}  # round 0 of a method with gifts is without the client
    return {"join.clients": 1, "join.round": 1}


ONE_CLIP = {"privacy.mode": "local", "privacy.clip_norm": 1e30, "privacy.noise_multiplier": 0.0}
LATE_MILESTONE = {"lr_schedule": {"name": "steps", "milestones": [90_000]}}
UNDECAYED = {"optimizer": {"name": "adamw", "weight_decay": 0.0}}
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
    Relation("AdamW without decay", lambda e: UNDECAYED if e.optimizer.params == Adam() else {}),
)


def check_relation(first: Sequence[Trace], relation: Relation, other: Experiment) -> None:
    """Raise a `Violation` with the first number that differs in a run of a changed experiment."""
    rounds = {one.round for one in first}
    second = [one for one in trace(Assembly(other), serial) if one.round in rounds]
    if relation.compares == "last":
        first, second = first[-1:], second[-1:]
    compare_traces(first, second, relation.tolerance, shared=relation.compares != "all")


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
