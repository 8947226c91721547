"""Payloads, the messages between clients and server: declarations and checks of their fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from fedray.core.flat import Flat
from fedray.errors import FedrayError, NotFinite, UserError, nearest
from fedray.trees import describe_tensor, is_tree, leaves

if TYPE_CHECKING:
    from fedray.core.client import Client

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FORMS = (Tensor, Mapping, int, float)


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

    @property
    def samples(self) -> int:
        """The client's number of training samples: images, or pixels in dense prediction."""
        train = self.client.train
        return int(train.index.shape[0]) * train.labels_per_image


# --- declaration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PayloadField:
    """The declaration of a field; see `payload_field`. `form` is the type in its annotation."""

    kind: Kind
    axes: tuple[str, ...]
    dtype: torch.dtype
    reveals: str
    counters: bool = False
    name: str = ""
    form: Any = Tensor

    def kind_of(self, path: Sequence[str], statistics: Collection[str]) -> Kind:
        """Return the kind of a tensor in this field: a model's buffers are statistics."""
        is_buffer = self.counters and bool(path) and path[-1] in statistics
        return "statistics" if is_buffer else self.kind


def payload_field(
    kind: Kind,
    axes: str = "",
    *,
    dtype: torch.dtype = torch.float32,
    reveals: str = "",
    counters: bool = False,
) -> Any:
    """Declare a field of a payload. The gate refuses values that do not fit the declaration.

    Args:
        kind: the kind under which the field is counted: "weights", "prototypes", ...
        axes: axis names of a tensor, for example "C d". The setting fixes the sizes of C (classes),
            d (feature width), N (clients), channels, height and width. Any other axis must have one
            size within the payload.
        dtype: the dtype of a tensor with `axes`.
        reveals: what a reader of this field learns about clients, for docs/privacy.md; "" if the
            texts of the payload's other fields cover it.
        counters: whether the integers in a mapping are counters or constants of a model, as those
            of kind "weights" and "prompts" are: sums keep their maximum. No sum takes others.

    Raises:
        ValueError: if the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}' of payload field.{nearest(kind, KINDS)}")
    counters = counters or kind in ("weights", "prompts")
    declaration = PayloadField(kind, tuple(axes.split()), dtype, reveals, counters)
    return dataclasses.field(metadata={"payload": declaration})


class Placed(NamedTuple):
    """A tensor or a number of a payload, and its place in it: "weights.head.bias"."""

    place: str
    kind: Kind
    axes: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Payload:
    """Base class of all messages between server and clients.

    A subclass is a frozen dataclass whose fields are declared with `payload_field`. A field is a
    tensor, a mapping of named tensors (nested or not), or a plain number.
    """

    types: ClassVar[dict[str, type[Payload]]] = {}
    """All payload classes by full name, because two methods may use the same short name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Payload.types[cls.full_name()] = cls

    @classmethod
    def full_name(cls) -> str:
        """Return the qualified name of the class, including its module."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    @cache
    def declared(cls) -> tuple[PayloadField, ...]:
        """Return the declarations of all fields.

        Raises:
            TypeError: if the class is no dataclass, or if a field has no declaration or a type that
                cannot be checked and counted.
        """
        if "__dataclass_params__" not in vars(cls):
            raise TypeError(f"{cls.__name__} is no dataclass: decorate it @dataclass(frozen=True)")
        hints = get_type_hints(cls)
        return tuple(_declared(cls, field, hints[field.name]) for field in dataclasses.fields(cls))

    @classmethod
    def reveals(cls) -> str:
        """Return what a reader of the payload learns about clients, as a phrase."""
        return "; ".join(dict.fromkeys(field.reveals for field in cls.declared() if field.reveals))

    def items(self, statistics: Collection[str] = ()) -> Iterator[Placed]:
        """Yield every tensor and number with its place, including those within mappings.

        Args:
            statistics: names of a model's buffers, which count as statistics.
        """
        for field in self.declared():
            value = getattr(self, field.name)
            if is_tree(value):
                for path, leaf in leaves(value):
                    kind = field.kind_of(path, statistics)
                    yield Placed(".".join((field.name, *path)), kind, (), leaf)
            else:
                yield Placed(field.name, field.kind, field.axes, value)

    def tensors(self, statistics: Collection[str] = ()) -> Iterator[Placed]:
        """Yield every tensor with its place, as `items` does."""
        return (item for item in self.items(statistics) if isinstance(item.value, Tensor))

    def map(
        self, function: Callable[[Kind, Tensor], Tensor], statistics: Collection[str] = ()
    ) -> Self:
        """Return a payload of the same type with `function(kind, tensor)` for every tensor."""

        def mapped(field: PayloadField, value: Any, path: tuple[str, ...] = ()) -> Any:
            if isinstance(value, Tensor):
                return function(field.kind_of(path, statistics), value)
            if is_tree(value):
                return {name: mapped(field, v, (*path, name)) for name, v in value.items()}
            return value

        return type(self)(**{f.name: mapped(f, getattr(self, f.name)) for f in self.declared()})

    @classmethod
    @cache
    def names(cls) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the fields with tensors, and of those that are plain numbers."""
        numbers = tuple(field.name for field in cls.declared() if field.form in (int, float))
        return tuple(f.name for f in cls.declared() if f.name not in numbers), numbers

    def form(self) -> tuple[object, ...]:
        """Return type, places, dtypes and shapes, without values; equal for alike payloads."""
        return type(self), *[structure_of(self.__dict__[name]) for name in self.names()[0]]

    def numbers(self) -> tuple[float, ...]:
        """Return all plain numbers."""
        return tuple(getattr(self, name) for name in self.names()[1])

    def blocks(self) -> list[Tensor]:
        """Return all tensors, those of a `Flat` as its vectors."""
        names = self.names()[0]
        return [block for name in names for block in tensor_blocks(self.__dict__[name])]

    def copied(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a payload with the results of a function that keeps values, type by type.

        Args:
            function: copies a tensor, to another device, say; it gets whole vectors (`Flat`).
        """
        values, (tensors, numbers) = vars(self), self.names()
        fields = {name: map_blocks(function, values[name]) for name in tensors}
        return type(self)(**fields, **{name: values[name] for name in numbers})

    # --- checks ----------------------------------------------------------------------------------

    def check(self, call: Call) -> None:
        """Check values that depend on the client or its download.

        Subclasses override this method and call `require_...` methods. The gate calls it for
        uploads, after it has checked every field against its declaration.
        """

    def require_within(self, name: str, low: float, high: float = math.inf) -> None:
        """Raise `BadPayload` unless a number, or every entry of a tensor, is in [low, high]."""
        place, value = f"{type(self).__name__}.{name}", getattr(self, name)
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
            raise BadPayload(f"{type(self).__name__}.{name} holds a class twice")

    def require_like(self, name: str, expected: Tensor | Mapping[str, Any]) -> None:
        """Raise `BadPayload` unless a field has the names, shapes and dtypes of `expected`."""
        _check_like(f"{type(self).__name__}.{name}", getattr(self, name), expected)

    def check_fields(self, axes: Mapping[str, int]) -> None:
        """Check type, axes and dtype of every field, and that plain numbers are finite.

        Args:
            axes: sizes of the axes that the setting fixes, by name.

        Raises:
            BadPayload: if a field does not fit its declaration; the message names the field.
        """
        owner, sizes = type(self).__name__, dict(axes)
        self.check_names()
        self.check_numbers()
        for field in self.declared():
            place, value = f"{owner}.{field.name}", getattr(self, field.name)
            if field.form is Mapping:
                _check_mapping(place, value)
            elif field.form not in (int, float):
                _check_tensor(place, value)
                _check_axes(place, value, field, sizes)

    def check_names(self) -> None:
        """Raise `BadPayload` unless the payload has the declared fields and no others.

        Properties that are computed once (`cached_property`) are no fields.
        """
        kind, (tensors, numbers) = type(self), self.names()
        if vars(self).keys() == {*tensors, *numbers}:
            return
        derived = {n for n in vars(self) if isinstance(getattr(kind, n, None), cached_property)}
        for name in sorted((vars(self).keys() - derived) ^ {*tensors, *numbers})[:1]:
            raise BadPayload(f"{kind.__name__} has other fields than declared: {name!r}")

    def check_numbers(self) -> None:
        """Check that every plain number has its declared type and is finite.

        Raises:
            BadPayload: if one does not; the message names the field.
        """
        for field in self.declared():
            if field.form in (int, float):
                value = self.__dict__[field.name]
                if type(value) is not int:  # which every such field may be
                    place = f"{type(self).__name__}.{field.name}"
                    _check_number(place, value, field.form)


def structure_of(value: Any) -> object:
    """Return dtypes and shapes of a value, equal for alike values; None for a number."""
    if type(value) is Flat:
        return value.layout.structure
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if is_tree(value):
        return tuple([(name, structure_of(inner)) for name, inner in value.items()])
    return None


def tensor_blocks(value: Any) -> Sequence[Tensor]:
    """Return the tensors of a value, those of a `Flat` as its vectors."""
    if type(value) is Flat:
        return value.vectors
    if isinstance(value, Tensor):
        return (value,)
    return [block for v in value.values() for block in tensor_blocks(v)] if is_tree(value) else ()


def map_blocks(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a value with the results of a function for its tensors, or for a `Flat`'s vectors."""
    if isinstance(value, Flat):
        return value.map(function)
    if isinstance(value, Tensor):
        return function(value)
    if is_tree(value):
        return {name: map_blocks(function, inner) for name, inner in value.items()}
    return value


PayloadTypes: TypeAlias = tuple[type[Payload], ...]


def _declared(owner: type[Payload], field: dataclasses.Field[Any], hint: Any) -> PayloadField:
    place, form = f"{owner.__name__}.{field.name}", get_origin(hint) or hint
    if "payload" not in field.metadata:
        raise TypeError(f"{place} is not declared: give it a payload_field(kind, axes)")
    if form not in _FORMS:
        raise TypeError(
            f"{place} is of type {hint}; a field that travels is a Tensor, a Mapping[str, Tensor], "
            "nested or not, an int or a float: nothing else can be checked and counted"
        )
    declaration: PayloadField = field.metadata["payload"]
    return dataclasses.replace(declaration, name=field.name, form=form)


# --- checks of one field -------------------------------------------------------------------------


def _check_number(place: str, value: Any, form: type) -> None:
    if type(value) not in (int, form):
        expected = "an int" if form is int else "a float"
        raise BadPayload(f"{place} is a {type(value).__name__}, expected {expected}")
    if not math.isfinite(value):
        raise NotFinitePayload(f"{place} is {value}")


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


def _check_axes(place: str, tensor: Tensor, field: PayloadField, sizes: dict[str, int]) -> None:
    """Check dtype and shape of a tensor with axes; add the sizes of new axes to `sizes`."""
    axes, shape = field.axes, tensor.shape
    if not axes:
        return
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
    values = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor | Mapping)}
    numbers = {name: value for name, value in values.items() if name not in tensors}
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
