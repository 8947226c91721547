"""What a client may do wrong in its reply: each a function of what it would have sent.

A poison is given the client and its honest upload, and returns what the step returns instead,
(upload, next state), or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.averaging.fedavg import GlobalModel
from fedray.algorithms.prototypes.class_prototypes import LocalPrototypes
from fedray.core import Client, ClientState

Poison: TypeAlias = Callable[[Client, Any, ClientState], Any]
NAN = float("nan")


class Unspeakable(Exception):
    """Cannot say what went wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def field(name: str, make: Callable[[Any], Any]) -> Poison:
    """Another value of one field."""

    def poison(client: Client, up: Any, after: ClientState) -> Any:
        object.__setattr__(up, name, make(getattr(up, name)))
        return up, after

    return poison


def leaf(name: str, make: Callable[[Tensor], Any]) -> Poison:
    """Another value of the last tensor of a mapping, a bias."""

    def changed(mapping: Mapping[str, Tensor]) -> dict[str, Any]:
        last = list(mapping)[-1]
        return {**mapping, last: make(mapping[last])}

    return field(name, changed)


def renamed(mapping: Mapping[str, Tensor], new: Any) -> dict[Any, Tensor]:
    """The last tensor under another name."""
    *rest, last = mapping
    return {**{name: mapping[name] for name in rest}, new: mapping[last]}


def upload(make: Callable[[Any], Any]) -> Poison:
    """Another upload."""
    return lambda client, up, after: (make(up), after)


def state(make: Callable[[ClientState], Any]) -> Poison:
    """Another next state."""
    return lambda client, up, after: (up, make(after))


def report(name: Any, value: Any) -> Poison:
    """A report."""

    def poison(client: Client, up: Any, after: ClientState) -> Any:
        client.reports[name] = value
        return up, after

    return poison


def loss(value: Any) -> Poison:
    """A training loss."""

    def poison(client: Client, up: Any, after: ClientState) -> Any:
        client.train_losses.append(value)
        return up, after

    return poison


def raises(error: BaseException) -> Poison:
    """An error."""

    def poison(client: Client, up: Any, after: ClientState) -> Any:
        raise error

    return poison


def smuggle(up: Any) -> Any:
    """An attribute that is no field."""
    object.__setattr__(up, "extra_luggage", [1.0] * 1000)
    return up


def stripped(up: Any) -> Any:
    """A field less."""
    object.__delattr__(up, "samples")
    return up


def quantised(tensor: Tensor) -> Tensor:
    """A quantised tensor."""
    return torch.quantize_per_tensor(tensor.detach().float(), 0.1, 0, torch.qint8)


def huge(tensor: Tensor) -> Tensor:
    """A trillion numbers that are one in memory."""
    return torch.zeros(1, dtype=tensor.dtype).expand(10**12)


def set_first(value: float) -> Callable[[Tensor], Tensor]:
    """The first entry is another."""

    def changed(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        copy.view(-1)[0] = value
        return copy

    return changed


def mapping_poisons(name: str) -> dict[str, Poison]:
    """Everything that may be wrong with a mapping of tensors."""
    leaves: dict[str, Callable[[Tensor], Any]] = {
        "one entry": lambda t: t[:1].clone(),
        "no entry": lambda t: t[:0].clone(),
        "a dimension less": lambda t: t.sum(),
        "a dimension more": lambda t: t.unsqueeze(0),
        "an entry more": lambda t: torch.cat([t, t[:1]]),
        "int64": lambda t: t.long(),
        "float64": lambda t: t.double(),
        "float16": lambda t: t.half(),
        "bfloat16": lambda t: t.bfloat16(),
        "complex": lambda t: t.to(torch.complex64),
        "bool": lambda t: t > 0,
        "sparse": lambda t: t.detach().to_sparse(),
        "quantised": quantised,
        "meta": lambda t: t.to("meta"),
        "huge": huge,
        "NaN": set_first(NAN),
        "infinity": set_first(float("inf")),
        "all NaN": lambda t: t * NAN,
        "a mapping inside": lambda t: {"inner": t},
        "an empty mapping inside": lambda t: {},
        "a number": lambda t: 1.0,
        "a list": lambda t: t.tolist(),
        "None": lambda t: None,
        "an array": lambda t: t.detach().numpy(),
        "a string": str,
        "a function": lambda t: len,
    }
    wholes: dict[str, Callable[[Any], Any]] = {
        "an extra tensor": lambda m: {**m, "extra": torch.zeros(3)},
        "a tensor less": lambda m: dict(list(m.items())[:-1]),
        "another name": lambda m: renamed(m, "other"),
        "a number as name": lambda m: renamed(m, 1),
        "None as name": lambda m: renamed(m, None),
        "a tuple as name": lambda m: renamed(m, ("a", "b")),
        "no tensor": lambda m: {},
        "a tensor for the mapping": lambda m: next(iter(m.values())),
        "pairs for the mapping": lambda m: list(m.items()),
        "None for the mapping": lambda m: None,
    }
    return {
        **{f"{name}: {what}": leaf(name, make) for what, make in leaves.items()},
        **{f"{name}: {what}": field(name, make) for what, make in wholes.items()},
    }


def number_poisons(name: str, values: Mapping[str, Any]) -> dict[str, Poison]:
    """A number that is another thing, or out of range."""
    others = {
        "True": True,
        "NaN": NAN,
        "infinity": float("inf"),
        "an array's int64": np.int64(3),
        "an array's float64": np.float64(3),
        "a fraction": Fraction(1, 2),
        "a complex number": 1j,
        "a tensor": torch.tensor(3),
        "a string": "3",
        "None": None,
        **values,
    }
    return {f"{name}: {what}": field(name, lambda _, v=v: v) for what, v in others.items()}


MODEL: dict[str, Poison] = {
    **mapping_poisons("weights"),
    **number_poisons(
        "samples",
        {"-50": -50, "0": 0, "10^30": 10**30, "1e30": 1e30, "a half": 0.5, "one too many": 10_000},
    ),
    "buffers: a tensor of no model": field("buffers", lambda m: {"mine": torch.zeros(1)}),
    "upload: without the samples": upload(stripped),
    "upload: of the parent's type": upload(lambda up: GlobalModel(up.weights, up.buffers)),
}
PROTOTYPES: dict[str, Poison] = {
    "classes: C": field("classes", set_first(10)),
    "classes: -1": field("classes", set_first(-1)),
    "classes: twice": field("classes", lambda t: t[:1].repeat(len(t))),
    "classes: int32": field("classes", lambda t: t.int()),
    "classes: float": field("classes", lambda t: t.float()),
    "classes: a list": field("classes", lambda t: t.tolist()),
    "classes: one less": field("classes", lambda t: t[:-1]),
    "classes: huge": field("classes", huge),
    "vectors: narrow": field("vectors", lambda t: t[:, :-1]),
    "vectors: one less": field("vectors", lambda t: t[:-1]),
    "vectors: flat": field("vectors", lambda t: t.flatten()),
    "vectors: float64": field("vectors", lambda t: t.double()),
    "vectors: NaN": field("vectors", set_first(NAN)),
    "vectors: a mapping": field("vectors", lambda t: {"vectors": t}),
    "counts: negative": field("counts", set_first(-3)),
    "counts: 0": field("counts", set_first(0)),
    "counts: more than images": field("counts", set_first(10**6)),
    "counts: float": field("counts", lambda t: t.float()),
    "counts: one less": field("counts", lambda t: t[:-1]),
    "upload: nothing in it": upload(
        lambda up: LocalPrototypes(up.classes[:0], up.vectors[:0], up.counts[:0])
    ),
}
ANY: dict[str, Poison] = {
    "upload: a mapping": upload(lambda up: dict(vars(up))),
    "upload: a string": upload(str),
    "upload: a list": upload(lambda up: [up]),
    "upload: a type": upload(type),
    "upload: a generator": upload(lambda up: (each for each in [up])),
    "upload: with luggage": upload(smuggle),
    "reply: None": lambda client, up, after: None,
    "reply: three": lambda client, up, after: (up, after, 1),
    "reply: the upload alone": lambda client, up, after: up,
    "state: None": state(lambda after: None),
    "state: a mapping": state(lambda after: dict(vars(after))),
    "state: a number in it": state(lambda after: replace(after, memory={"steps": 3})),
    "state: a number as name": state(lambda after: replace(after, memory={3: torch.ones(1)})),
    "state: a sparse tensor": state(
        lambda after: replace(after, memory={"seen": torch.ones(3).to_sparse()})
    ),
    "state: bfloat16": state(
        lambda after: replace(after, memory={"seen": torch.ones(3, dtype=torch.bfloat16)})
    ),
    "report: NaN": report("share", NAN),
    "report: infinity": report("share", float("inf")),
    "report: a string": report("share", "0.5"),
    "report: True": report("share", True),
    "report: None": report("share", None),
    "report: a tensor": report("share", torch.ones(2)),
    "report: a number as name": report(1, 1.0),
    "report: no name": report("", 1.0),
    "report: a line break in the name": report("a\nb", 1.0),
    "loss: NaN": loss(NAN),
    "loss: a string": loss("0.5"),
    "loss: None": loss(None),
    "raises: KeyError": raises(KeyError("oops")),
    "raises: SystemExit": raises(SystemExit(0)),
    "raises: KeyboardInterrupt": raises(KeyboardInterrupt()),
    "raises: GeneratorExit": raises(GeneratorExit()),
    "raises: StopIteration": raises(StopIteration(1)),
    "raises: BaseException": raises(BaseException("bare")),
    "raises: MemoryError": raises(MemoryError()),
    "raises: many lines": raises(ValueError("one\ntwo\nthree")),
    "raises: without words": raises(Unspeakable()),
}

POISONS: dict[str, dict[str, Poison]] = {
    "fedavg": {**MODEL, **ANY},
    "scaffold": mapping_poisons("control"),
    "fednova": number_poisons("steps", {"0": 0, "-1": -1.0, "1e30": 1e30}),
    "fedproto": PROTOTYPES,
    "fedtsp": PROTOTYPES,
}
"""By method and name."""

HARMLESS: dict[str, Poison] = {
    "weights: with gradients": leaf("weights", lambda t: t.detach().clone().requires_grad_()),
    "weights: a parameter": leaf("weights", lambda t: torch.nn.Parameter(t.detach().clone())),
    "weights: a strided view": leaf("weights", lambda t: torch.stack([t, t], dim=1)[:, 0]),
    "weights: in another order": field("weights", lambda m: dict(reversed(list(m.items())))),
}
"""What is unusual and yet means what it says: it must change no number."""
