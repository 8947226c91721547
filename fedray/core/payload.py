"""Payloads, the messages between clients and server: declarations and checks of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import torch
from torch import Tensor

from fedray.errors import FedrayError, NotFinite, UserError, nearest
from fedray.flat import Flat, map_blocks, structure_of, tensor_blocks
from fedray.trees import describe_tensor, is_tree, leaves

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
        algorithm: the `Algorithm`, which this module does not know.
        step: the name of the step.
        client: the client; its skeleton has the client's architecture.
        down: the download of the client.
    """

    algorithm: object
    step: str
    client: Client
    down: Any


# --- declaration ---------------------------------------------------------------------------------

Check: TypeAlias = "Callable[[Any, str, Call], None]"
"""Raises `BadPayload` unless a payload's field of this name fits the client's call."""


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
        combine: how the server combines uploads (`Averaging`): "mean", weighed by the client, or
            "sum"; "": by a step of the method.
        check: checks an upload's values that depend on the client or its download.

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
    combine: str = ""
    check: Check | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = nearest(self.kind, KINDS)
            raise ValueError(f"there is no kind '{self.kind}' of payload field.{near}")
        if self.kind in ("weights", "prompts"):
            object.__setattr__(self, "counters", True)

    def kind_of(self, path: Sequence[str], statistics: Collection[str]) -> Kind:
        """Return the kind of a tensor in this field: a model's buffers are statistics."""
        is_buffer = self.counters and bool(path) and path[-1] in statistics
        return "statistics" if is_buffer else self.kind


sent = Declared


def count_of_samples(payload: Any, name: str, call: Call) -> None:
    """Raise `BadPayload` unless counts lie between 1 and the client's number of samples.

    Its samples are its training images, or their pixels in dense prediction.
    """
    value, train = payload.__dict__[name], call.client.train
    samples = train.index.shape[0] * train.labels_per_image
    if name in payload.tensor_fields or not 1 <= value <= samples:
        payload.require_within(name, 1, samples)


def like_download(sent_as: str) -> Check:
    """Return a check that a field has names, shapes and dtypes of a field of the download."""

    def check(payload: Any, name: str, call: Call) -> None:
        payload.require_like(name, getattr(call.down, sent_as))

    return check


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

    declared: ClassVar[Mapping[str, Declared]] = {}
    """The declarations of all fields, by name."""
    tensor_fields: ClassVar[tuple[str, ...]] = ()
    """The names of all fields but plain numbers."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Declared)}
        cls.declared = {**cls.declared, **own}
        cls.tensor_fields = tuple(name for name, one in cls.declared.items() if not one.number)
        cls.__annotations__ = dict.fromkeys(own, Any)
        for name in own:
            delattr(cls, name)
        dataclass(frozen=True)(cls)
        Payload.types[cls.full_name()] = cls

    @classmethod
    def full_name(cls) -> str:
        """Return the qualified name of the class, including its module."""
        return f"{cls.__module__}.{cls.__qualname__}"

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
            value = getattr(self, name)
            if is_tree(value):
                for path, leaf in leaves(value):
                    kind = field.kind_of(path, statistics)
                    yield Placed(".".join((name, *path)), kind, "", leaf)
            else:
                yield Placed(name, field.kind, field.axes, value)

    def tensors(self, statistics: Collection[str] = ()) -> Iterator[Placed]:
        """Yield every tensor with its place, as `items` does."""
        return (item for item in self.items(statistics) if isinstance(item.value, Tensor))

    def map(
        self, function: Callable[[Kind, Tensor], Tensor], statistics: Collection[str] = ()
    ) -> Self:
        """Return a payload of the same type with `function(kind, tensor)` for every tensor."""

        def mapped(field: Declared, value: Any, path: tuple[str, ...] = ()) -> Any:
            if isinstance(value, Tensor):
                return function(field.kind_of(path, statistics), value)
            if is_tree(value):
                return {name: mapped(field, v, (*path, name)) for name, v in value.items()}
            return value

        return type(self)(*[mapped(f, getattr(self, name)) for name, f in self.declared.items()])

    def form(self) -> tuple[object, ...]:
        """Return type, places, dtypes and shapes, without values; equal for alike payloads."""
        return type(self), *[structure_of(self.__dict__[name]) for name in self.tensor_fields]

    def numbers(self) -> tuple[float, ...]:
        """Return all plain numbers."""
        return tuple([v for name, v in vars(self).items() if name not in self.tensor_fields])

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

    # --- checks ----------------------------------------------------------------------------------

    def check(self, call: Call) -> None:
        """Run the checks of an upload's fields, after all fields fit their declarations."""
        for name, field in self.declared.items():
            if field.check is not None:
                field.check(self, name, call)

    def require_within(self, name: str, low: float, high: float = math.inf) -> None:
        """Raise `BadPayload` unless a number, or every entry of a tensor, is in [low, high]."""
        place, value = f"{type(self).__qualname__}.{name}", getattr(self, name)
        if isinstance(value, Tensor) and not value.numel():
            raise BadPayload(f"{place} is empty")
        bounds = value.aminmax() if isinstance(value, Tensor) else (value, value)
        least, most = map(float, bounds)
        if not (low <= least and most <= high):
            kind = BadPayload if math.isfinite(least) and math.isfinite(most) else NotFinitePayload
            wrong = most if least >= low else least
            raise kind(f"{place} holds {wrong:g}, expected {low:g} to {high:g}")

    def require_classes(self, name: str, call: Call) -> None:
        """Raise `BadPayload` unless a tensor holds at least one class number and none twice."""
        self.require_within(name, 0, call.client.setting.num_classes - 1)
        if len(getattr(self, name).unique()) < len(getattr(self, name)):
            raise BadPayload(f"{type(self).__qualname__}.{name} holds a class twice")

    def require_like(self, name: str, expected: Tensor | Mapping[str, Any]) -> None:
        """Raise `BadPayload` unless a field has the names, shapes and dtypes of `expected`."""
        _check_like(f"{type(self).__qualname__}.{name}", getattr(self, name), expected)

    def check_fields(self, axes: Mapping[str, int]) -> None:
        """Check type, axes and dtype of every tensor and mapping.

        Args:
            axes: sizes of the axes that the setting fixes, by name.

        Raises:
            BadPayload: if a field does not fit its declaration; the message names the field.
        """
        owner, sizes = type(self).__qualname__, dict(axes)
        for name, field in self.declared.items():
            place, value = f"{owner}.{name}", getattr(self, name)
            if field.axes:
                _check_tensor(place, value)
                _check_axes(place, value, field, sizes)
            elif not field.number:
                _check_mapping(place, value)

    def check_numbers(self) -> None:
        """Check that every plain number has its declared type and is finite.

        Raises:
            BadPayload: if one does not; the message names the field.
        """
        for name, field in self.declared.items():
            value, kind = self.__dict__[name], field.number
            if kind is None or type(value) is int:  # which every such field may be
                continue
            place = f"{type(self).__qualname__}.{name}"
            if type(value) is not kind:
                expected = "an int" if kind is int else "a float"
                raise BadPayload(f"{place} is a {type(value).__name__}, expected {expected}")
            if not math.isfinite(value):
                raise NotFinitePayload(f"{place} is {value}")


PayloadTypes: TypeAlias = tuple[type[Payload], ...]


# --- checks of one field -------------------------------------------------------------------------


def _check_mapping(place: str, value: Any) -> None:
    if isinstance(value, Flat):
        return
    if not is_tree(value):
        raise BadPayload(f"{place} is a {type(value).__name__}, expected a mapping of tensors")
    for name, inner in value.items():
        check = _check_mapping if is_tree(inner) else _check_tensor
        check(f"{place}.{name}", inner)


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


def _check_like(place: str, value: Any, expected: Any) -> None:
    if isinstance(value, Flat) and isinstance(expected, Flat) and value.layout is expected.layout:
        return
    if isinstance(value, Tensor) and isinstance(expected, Tensor):
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise BadPayload(
                f"{place} is {describe_tensor(value)}, expected {describe_tensor(expected)}"
            )
        return
    if not is_tree(value) or not is_tree(expected):
        kind = "a mapping" if is_tree(expected) else "a tensor"
        raise BadPayload(f"{place} is a {type(value).__name__}, expected {kind}")
    for name in sorted(value.keys() - expected.keys()):
        raise BadPayload(f"{place} has an unexpected entry '{name}'")
    for name, inner in expected.items():
        if name not in value:
            raise BadPayload(f"{place} lacks '{name}'")
        _check_like(f"{place}.{name}", value[name], inner)


def split_payload(payload: Payload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a payload's type and numbers as JSON values, and its tensors by field."""
    tensors = {name: getattr(payload, name) for name in payload.tensor_fields}
    numbers = {name: value for name, value in vars(payload).items() if name not in tensors}
    return {"type": payload.full_name(), "numbers": numbers}, tensors


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
