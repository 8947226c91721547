"""Payloads, the messages between clients and server: declarations and checks of their fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fedray.base.errors import FedrayError, NotFinite, UserError
from fedray.base.flat import map_blocks, structure_of, tensor_blocks
from fedray.base.trees import describe_tensor, leaves, map_tensors

if TYPE_CHECKING:
    from fedray.core.client import Client

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
EXEMPT_KINDS: tuple[Kind, ...] = ("images", "statistics")
"""Kinds of payload fields that are never clipped, noised or quantised."""


class BadPayload(FedrayError):
    """An error for a payload that does not fit its declaration."""


class NotFinitePayload(BadPayload, NotFinite):
    """An error for a payload with a number that is NaN or infinite."""


def is_covered(kind: Kind, value: Any) -> bool:
    """Return True for a floating-point tensor whose kind is not exempt."""
    is_exempt = kind in EXEMPT_KINDS or not isinstance(value, Tensor)
    return not is_exempt and value.is_floating_point() and value.numel() > 0


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
    combine: Combine = ""

    def __post_init__(self) -> None:
        if self.combine not in ("", "mean", "sum") and not callable(self.combine):
            raise ValueError(f"combine={self.combine!r}, expected 'mean', 'sum' or a function")

    @property
    def counters(self) -> bool:
        """Whether integers are counters or constants of a model: sums keep their maximum."""
        return self.kind in ("weights", "prompts") and not self.axes


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
        named = vars(values) if isinstance(values, Payload) else values
        if isinstance(named, dict) and named.keys() == self.keys():
            return Payload(self, {name: named[name] for name in self})
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
        for path, value in leaves(self.__dict__):
            field = self.fields[path[0]]
            is_buffer = field.counters and len(path) > 1 and path[-1] in statistics
            yield ".".join(path), "statistics" if is_buffer else field.kind, field.axes, value

    def covered(
        self, function: Callable[[Tensor], Tensor], statistics: Collection[str] = ()
    ) -> Payload:
        """Return a payload with the results of a function for all tensors that `is_covered`."""
        changed = (
            function(value) if is_covered(kind, value) else value
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
            BadPayload: if a value does not fit its declaration; the message names its place.
        """
        sizes = dict(axes)
        for path, value in leaves(self.__dict__):
            is_named = len(path) > 1
            if expected := _expected(self.fields[path[0]], value, sizes, is_named=is_named):
                is_tensor = isinstance(value, Tensor)
                form = describe_tensor(value) if is_tensor else f"of type {type(value).__name__}"
                place = ".".join((self.fields.place, *path))
                raise BadPayload(f"{place} is {form}, expected {expected}")


def _expected(field: Declared, value: Any, sizes: dict[str, int], *, is_named: bool) -> str:
    """Return what a field expects in place of a number or tensor that does not fit; "" if it does.

    Args:
        field: the declaration.
        value: the number or tensor.
        sizes: sizes of axes by name, to which those of new axes are added.
        is_named: whether it is one of several by name.
    """
    if field.number:  # a float may be whole
        is_number = type(value) in (int, field.number) and not is_named
        return "" if is_number else f"a number of type {field.number.__name__}"
    if not field.axes:
        expected = "a tensor" if is_named else "a mapping of tensors"
        return "" if is_named and isinstance(value, Tensor) else expected
    axes = field.axes.split()
    if isinstance(value, Tensor) and not is_named:
        shape = [sizes.setdefault(*pair) for pair in zip(axes, value.shape, strict=False)]
        if shape == [*value.shape] and len(axes) == value.ndim and value.dtype == field.dtype:
            return ""
    fixed = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if axis in sizes)
    dtype = str(field.dtype).removeprefix("torch.")
    return f"{dtype} [{', '.join(axes)}] with {fixed}"


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
