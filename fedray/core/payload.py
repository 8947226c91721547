"""Payloads, the messages between clients and server: declarations and checks of their fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    TypeAlias,
    get_args,
)

import torch
from torch import Tensor

from fedray.base.errors import FedrayError, NotFinite, UserError
from fedray.base.flat import map_blocks, structure_of, tensor_blocks
from fedray.base.trees import StateTree, describe_tensor, is_tree, leaves, map_tensors

if TYPE_CHECKING:
    from fedray.core.client import Client

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class BadPayload(FedrayError):
    """An error for a payload that does not fit its declaration, its client or the download."""


class NotFinitePayload(BadPayload, NotFinite):
    """An error for a payload with a number that is NaN or infinite."""


@dataclass
class Call:
    """The call of a client step.

    Attributes:
        step: the name of the step.
        client: the client; its skeleton has the client's architecture.
        down: the download of the client.
    """

    step: str
    client: Client
    down: Any


# --- declaration ---------------------------------------------------------------------------------

Combine: TypeAlias = "Literal['', 'mean', 'sum'] | Callable[[Any, Any], Mapping[str, Any]]"
"""How the server combines a field of uploads."""


@dataclass(frozen=True)
class Declared:
    """The declaration of what travels under a name, written `sent`; the gate refuses what differs.

    Args:
        kind: the kind under which it is counted: "weights", "prototypes", ...
        reveals: what a reader of it learns about clients, for docs/privacy.md; "" if the texts of
            what travels with it cover it.
        axes: axis names of a tensor, for example "C d"; "": named tensors. The setting fixes the
            sizes of C (classes), d (feature width), N (clients), channels, height and width. Any
            other axis must have one size within the payload.
        dtype: the dtype of a tensor with `axes`.
        number: the type of a plain number, which is no tensor.
        counters: whether integers among named tensors are counters or constants of a model, as
            those of kind "weights" and "prompts" are: sums keep their maximum. No sum takes others.
        combine: how the server combines uploads: "mean", by the clients' weights
            (`Algorithm.weight`); "sum"; or a function (method, upload) of the tensors whose sums
            it needs, for example `algorithms.mean.by_class`; "": by a step of the method.

    Raises:
        ValueError: if the kind is unknown.
    """

    kind: Kind
    reveals: str = ""
    axes: str = ""
    _: KW_ONLY
    dtype: torch.dtype = torch.float32
    number: type[int | float] | None = None
    counters: bool = False
    combine: Combine = ""

    def __post_init__(self) -> None:
        if self.combine not in ("", "mean", "sum") and not callable(self.combine):
            raise ValueError(f"combine={self.combine!r}, expected 'mean', 'sum' or a function")
        if self.kind in ("weights", "prompts"):
            object.__setattr__(self, "counters", True)

    def kind_of(self, path: Sequence[str], statistics: Collection[str]) -> Kind:
        """Return the kind of a tensor in this field: a model's buffers are statistics."""
        is_buffer = self.counters and bool(path) and path[-1] in statistics
        return "statistics" if is_buffer else self.kind


sent = Declared


class Fields(dict[str, Declared]):
    """What travels in one direction of a client step: declarations by name.

    Called with the values, in their order or by name, it returns a payload.

    Args:
        place: where it is declared, "FedAvg.up", for messages.
        fields: the declarations.

    Attributes:
        tensors: the names of all fields but plain numbers.
        floats: the names of the numbers that need not be whole.
    """

    def __init__(self, place: str, fields: Mapping[str, Declared]) -> None:
        super().__init__(fields)
        self.place = place
        self.tensors = tuple(name for name, one in fields.items() if not one.number)
        self.floats = tuple(name for name, one in fields.items() if one.number is float)

    def __call__(self, *values: Any, **named: Any) -> Payload:
        """Return a payload of values in the order of the fields, or all by name.

        Raises:
            ValueError, TypeError: if a field has no value, or a value no field.
        """
        if not named:
            return Payload(self, dict(zip(self, values, strict=True)))
        if values or named.keys() != self.keys():
            raise TypeError(f"{self.place} has the fields {', '.join(self)}, each with one value")
        return Payload(self, {name: named[name] for name in self})

    def uploaded(self, values: Any, step: str) -> Payload | None:
        """Return the payload of what a client step returned as its upload.

        Args:
            values: a payload, or values by name; None, which `client_update` may return only
                without fields.
            step: the name of the step.

        Raises:
            BadPayload: if the step returned other fields.
        """
        if values is None and not (self and step == "client_update"):
            return None
        if isinstance(values, dict) and values.keys() == self.keys():
            return Payload(self, {name: values[name] for name in self})
        if isinstance(values, Payload) and values.fields is self:
            return values
        named = vars(values) if isinstance(values, Payload) else values
        found = ", ".join(named) if isinstance(named, dict) else type(values).__name__
        raise BadPayload(f"{step} uploads {found}, expected {', '.join(self) or 'nothing'}")

    def reveals(self) -> str:
        """Return what a reader of a payload learns about clients, as a phrase."""
        return "; ".join(dict.fromkeys(one.reveals for one in self.values() if one.reveals))


class Payload:
    """A message between server and clients, whose values are read as attributes.

    Its values are tensors, mappings of named tensors (nested or not), and plain numbers.

    Args:
        fields: their declarations.
        values: the values, in the order of the fields.
    """

    __slots__ = ("__dict__", "__weakref__", "fields")

    def __init__(self, fields: Fields, values: dict[str, Any]) -> None:
        self.fields = fields
        self.__dict__ = values

    def items(self, statistics: Collection[str] = ()) -> Iterator[tuple[str, Kind, str, Any]]:
        """Yield place, kind, axes and value of every tensor and number: "weights.head.bias", ...

        Args:
            statistics: names of a model's buffers, which count as statistics.
        """
        for name, field in self.fields.items():
            for path, leaf in leaves({name: self.__dict__[name]}):
                yield ".".join(path), field.kind_of(path[1:], statistics), field.axes, leaf

    def map(
        self, function: Callable[[Kind, Tensor], Tensor], statistics: Collection[str] = ()
    ) -> Payload:
        """Return a payload of the same fields with `function(kind, tensor)` for every tensor."""
        changed = (
            function(kind, value) if isinstance(value, Tensor) else value
            for _, kind, _, value in self.items(statistics)
        )
        return Payload(self.fields, map_tensors(lambda _: next(changed), vars(self)))

    def form(self) -> tuple[object, ...]:
        """Return place, names, dtypes and shapes, without values; equal for alike payloads."""
        return self.fields.place, *map(structure_of, self.__dict__.values())

    def blocks(self) -> Sequence[Tensor]:
        """Return all tensors, those of a `Flat` as its vectors."""
        return [block for n in self.fields.tensors for block in tensor_blocks(self.__dict__[n])]

    def copied(self, function: Callable[[Tensor], Tensor]) -> Payload:
        """Return a payload with the results of a function that keeps values, for all `blocks`."""
        copies = {n: map_blocks(function, self.__dict__[n]) for n in self.fields.tensors}
        return Payload(self.fields, {**self.__dict__, **copies})

    def replaced(self, **values: Any) -> Payload:
        """Return a payload with other values of some fields."""
        return Payload(self.fields, {**self.__dict__, **values})

    def check_fields(self, axes: Mapping[str, int]) -> None:
        """Check the types of all values, and axes and dtypes of tensors.

        Args:
            axes: sizes of the axes that the setting fixes, by name.

        Raises:
            BadPayload: if a field does not fit its declaration; the message names the field.
        """
        sizes = dict(axes)
        for name, field in self.fields.items():
            place, value = f"{self.fields.place}.{name}", self.__dict__[name]
            if field.number:
                if type(value) not in (int, field.number):  # a float may be whole
                    _refuse(place, value, f"a number of type {field.number.__name__}")
            elif field.axes:
                _check_axes(place, value, field, sizes)
            elif not is_tree(value):
                _refuse(place, value, "a mapping of tensors")
            else:
                _check_tensors(place, value)


def _refuse(place: str, value: Any, expected: str) -> NoReturn:
    raise BadPayload(f"{place} is of type {type(value).__name__}, expected {expected}")


def _check_tensors(place: str, tree: StateTree) -> None:
    for path, value in leaves(tree, (place,)):
        if not isinstance(value, Tensor):  # whose bytes are not counted
            _refuse(".".join(path), value, "a tensor")


def _check_axes(place: str, value: Any, field: Declared, sizes: dict[str, int]) -> None:
    """Check dtype and shape of a tensor with axes; add the sizes of new axes to `sizes`."""
    if not isinstance(value, Tensor):
        _refuse(place, value, "a tensor")
    axes = field.axes.split()
    expected = [sizes.setdefault(*pair) for pair in zip(axes, value.shape, strict=False)]
    if expected != [*value.shape] or len(axes) != value.ndim or value.dtype != field.dtype:
        fixed = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if axis in sizes)
        dtype = str(field.dtype).removeprefix("torch.")
        form = f"{dtype} [{', '.join(axes)}] with {fixed}"
        raise BadPayload(f"{place} is {describe_tensor(value)}, expected {form}")


def split_payload(payload: Payload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a payload's place and numbers as JSON values, and its tensors by field."""
    tensors = {name: vars(payload)[name] for name in payload.fields.tensors}
    numbers = {name: value for name, value in vars(payload).items() if name not in tensors}
    return {"fields": payload.fields.place, "numbers": numbers}, tensors


def join_payload(
    facts: Mapping[str, Any], tensors: Mapping[str, Any], declared: Sequence[Fields]
) -> Payload:
    """Return the payload that `split_payload` split, whose fields are among those declared.

    Raises:
        UserError: if the method declares others since then.
    """
    for fields in declared:
        if fields.place == facts["fields"]:
            return fields(**facts["numbers"], **tensors)
    raise UserError(f"the method has no {facts['fields']} any more; install the run's version")
