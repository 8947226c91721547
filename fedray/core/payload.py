"""Payloads, the messages between clients and server: declarations and checks of their fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import torch
from torch import Tensor

from fedray.errors import FedrayError, NotFinite, UserError, nearest
from fedray.flat import map_blocks, structure_of, tensor_blocks
from fedray.trees import describe_tensor, is_tree, leaves, map_tensors

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


@dataclass(frozen=True)
class Call:
    """The call of a client step that returned an upload.

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
        if self.kind not in KINDS:
            near = nearest(self.kind, KINDS)
            raise ValueError(f"there is no kind '{self.kind}' of payload field.{near}")
        if self.combine not in ("", "mean", "sum") and not callable(self.combine):
            raise ValueError(f"combine={self.combine!r}, expected 'mean', 'sum' or a function")
        if self.kind in ("weights", "prompts"):
            object.__setattr__(self, "counters", True)

    def kind_of(self, path: Sequence[str], statistics: Collection[str]) -> Kind:
        """Return the kind of a tensor in this field: a model's buffers are statistics."""
        is_buffer = self.counters and bool(path) and path[-1] in statistics
        return "statistics" if is_buffer else self.kind


sent = Declared


class Placed(NamedTuple):
    """A tensor or a number of a payload, and its place in it: "weights.head.bias"."""

    place: str
    kind: Kind
    axes: str
    value: Any


@dataclass(frozen=True)
class Payload:
    """Base class of all messages between server and clients, frozen dataclasses.

    Methods declare them as `down` and `up`. Every attribute that is `sent(...)` becomes a field: a
    tensor, a mapping of named tensors (nested or not), or a plain number.
    """

    types: ClassVar[dict[str, type[Payload]]] = {}
    """All payload classes by full name, because two methods may use the same short name."""
    full_name: ClassVar[str]
    """The qualified name of the class, including its module."""
    declared: ClassVar[Mapping[str, Declared]] = {}
    """The declarations of all fields, by name."""
    tensor_fields: ClassVar[tuple[str, ...]] = ()
    """The names of all fields but plain numbers."""
    float_fields: ClassVar[tuple[str, ...]] = ()
    """The names of plain numbers that may not be finite."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Declared)}
        cls.declared = {**cls.declared, **own}
        cls.tensor_fields = tuple(name for name, one in cls.declared.items() if not one.number)
        cls.float_fields = tuple(n for n, one in cls.declared.items() if one.number is float)
        cls.__annotations__ = dict.fromkeys(own, Any)
        for name in own:
            delattr(cls, name)
        dataclass(frozen=True)(cls)
        cls.full_name = f"{cls.__module__}.{cls.__qualname__}"
        Payload.types[cls.full_name] = cls

    @classmethod
    def reveals(cls) -> str:
        """Return what a reader of the payload learns about clients, as a phrase."""
        return "; ".join(dict.fromkeys(one.reveals for one in cls.declared.values() if one.reveals))

    def items(self, statistics: Collection[str] = ()) -> Iterator[Placed]:
        """Yield every tensor and number with its place, including those within mappings.

        Args:
            statistics: names of a model's buffers, which count as statistics.
        """
        for name, field in self.declared.items():
            for path, leaf in leaves({name: self.__dict__[name]}):
                yield Placed(".".join(path), field.kind_of(path[1:], statistics), field.axes, leaf)

    def map(
        self, function: Callable[[Kind, Tensor], Tensor], statistics: Collection[str] = ()
    ) -> Self:
        """Return a payload of the same type with `function(kind, tensor)` for every tensor."""
        values = [
            function(item.kind, item.value) if isinstance(item.value, Tensor) else item.value
            for item in self.items(statistics)
        ]
        remaining = iter(values)
        return type(self)(**map_tensors(lambda _: next(remaining), vars(self)))

    def form(self) -> tuple[object, ...]:
        """Return types, places, dtypes and shapes, without values; equal for alike payloads."""
        return type(self), *map(structure_of, self.__dict__.values())

    def blocks(self) -> list[Tensor]:
        """Return all tensors, those of a `Flat` as its vectors."""
        names = self.tensor_fields
        return [block for name in names for block in tensor_blocks(self.__dict__[name])]

    def copied(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a payload with the results of a function that keeps values, type by type.

        Args:
            function: copies a tensor, to another device, say; it gets whole vectors (`Flat`).
        """
        values = self.__dict__
        copies = {name: map_blocks(function, values[name]) for name in self.tensor_fields}
        return type(self)(**{**values, **copies})

    def check_fields(self, axes: Mapping[str, int]) -> None:
        """Check type, axes and dtype of every tensor and mapping, and the types of numbers.

        Args:
            axes: sizes of the axes that the setting fixes, by name.

        Raises:
            BadPayload: if a field does not fit its declaration; the message names the field.
        """
        owner, sizes = type(self).__qualname__, dict(axes)
        for name, field in self.declared.items():
            value = getattr(self, name)
            kind = type(value).__name__
            if field.number:
                if type(value) not in (int, field.number):  # a float may be whole
                    expected = "an int" if field.number is int else "a float"
                    raise BadPayload(f"{owner}.{name} is a {kind}, expected {expected}")
                continue
            if not field.axes and not is_tree(value):
                raise BadPayload(f"{owner}.{name} is a {kind}, expected a mapping of tensors")
            for path, leaf in [((name,), value)] if field.axes else leaves({name: value}):
                _check_tensor(".".join((owner, *path)), leaf)
            if field.axes:
                _check_axes(f"{owner}.{name}", value, field, sizes)


PayloadTypes: TypeAlias = tuple[type[Payload], ...]


def _check_tensor(place: str, value: Any) -> None:
    """Check that a value is a dense tensor, whose bytes can be counted."""
    if not isinstance(value, Tensor):
        raise BadPayload(f"{place} is a {type(value).__name__}, expected a tensor")
    if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        kind = "meta" if value.is_meta else "quantised" if value.is_quantized else value.layout
        raise BadPayload(f"{place} is a tensor of another kind ({kind}), expected a dense one")


def _check_axes(place: str, tensor: Tensor, field: Declared, sizes: dict[str, int]) -> None:
    """Check dtype and shape of a tensor with axes; add the sizes of new axes to `sizes`."""
    axes, shape = field.axes.split(), tensor.shape
    expected = [sizes.setdefault(*pair) for pair in zip(axes, shape, strict=False)]
    if expected != [*shape] or len(axes) != len(shape) or tensor.dtype != field.dtype:
        fixed = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if axis in sizes)
        dtype = str(field.dtype).removeprefix("torch.")
        form = f"{dtype} [{', '.join(axes)}]" + (f" with {fixed}" if fixed else "")
        raise BadPayload(f"{place} is {describe_tensor(tensor)}, expected {form}")


def split_payload(payload: Payload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a payload's type and numbers as JSON values, and its tensors by field."""
    tensors = {name: getattr(payload, name) for name in payload.tensor_fields}
    numbers = {name: value for name, value in vars(payload).items() if name not in tensors}
    return {"type": payload.full_name, "numbers": numbers}, tensors


def join_payload(facts: Mapping[str, Any], tensors: Mapping[str, Any], where: object) -> Payload:
    """Return the payload that `split_payload` split.

    Raises:
        UserError: if no payload class of this type has been imported in this process.
    """
    kind = Payload.types.get(facts["type"])
    if kind is None:
        raise UserError(
            f"{where} holds a payload of type {facts['type']}, which this version does not define; "
            "read it with the code that wrote it"
        )
    return kind(**facts["numbers"], **tensors)
