"""What travels between clients and server: declared fields, each of one kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from fedray.core.state import leaves
from fedray.errors import nearest

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_DECLARATION = "declaration"


Form: TypeAlias = Literal["tensor", "mapping", "int", "float"]
"""What a field's type hint makes of it: `Tensor`, `Mapping[str, Tensor]`, `int`, `float`."""
Bound: TypeAlias = float | Callable[[Any], float]
"""A number, or what gives it for the `Call` that an upload answers."""
Template: TypeAlias = Callable[[Any], Any]
"""Gives, for the `Call` that an upload answers, a tensor or mapping that it must be like."""


@dataclass(frozen=True)
class Declared:
    """A field as a payload's class declares it; see `payload_field`."""

    name: str
    kind: Kind
    axes: tuple[str, ...]
    form: Form = "tensor"
    dtype: torch.dtype = torch.float32
    low: Bound | None = None
    high: Bound | None = None
    distinct: bool = False
    like: Template | None = None
    partial: bool = False


def payload_field(
    kind: Kind,
    shape: str = "",
    *,
    dtype: torch.dtype = torch.float32,
    low: Bound | None = None,
    high: Bound | None = None,
    distinct: bool = False,
    like: Template | None = None,
    partial: bool = False,
) -> Any:
    """Declare a field of a payload; what does not fit is the failure of the client that sent it.

    Args:
        kind: what is counted: "weights", "prototypes", ...
        shape: axis names of a tensor, for example "C d". An axis that the setting knows (C classes,
            d feature width, N clients, of images channels, height, width, and of an upload v, the
            client's validation images) has that size; any other must agree within the payload.
        dtype: of a tensor with `shape`.
        low: the least that a number, or any entry of a tensor, may be.
        high: the most.
        distinct: whether no two entries of a tensor are equal.
        like: gives a tensor or a mapping that an upload has the names, shapes and dtypes of. By
            default a mapping is like the field of that name in what the client was sent; where that
            has none, its tensors are some of the client's model. Its leaves may be `Shaped`, sizes
            that the data decides, and its mappings `OneOf` several.
        partial: whether names may be missing.

    Raises:
        ValueError: when there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}' of payload field.{nearest(kind, KINDS)}")
    declared = Declared(
        "",
        kind,
        tuple(shape.split()),
        dtype=dtype,
        low=low,
        high=high,
        distinct=distinct,
        like=like,
        partial=partial,
    )
    return dataclasses.field(metadata={_DECLARATION: declared})


class Placed(NamedTuple):
    """A tensor or a number of a payload, and where it stands: "weights.head.bias"."""

    place: str
    kind: Kind
    axes: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Payload:
    """Base of everything that travels; subclasses are frozen dataclasses of `payload_field`s.

    A field is a tensor, a mapping of named tensors, or a plain number.
    """

    reveals: ClassVar[str] = ""
    """What whoever reads it learns of clients, half a sentence; for docs/privacy.md."""
    types: ClassVar[dict[str, type[Payload]]] = {}
    """Every kind of payload, by its full name; two methods may use one short name."""

    def __init_subclass__(cls) -> None:
        """Refuse a field that cannot travel where it is written down.

        Raises:
            TypeError: naming the field.
        """
        super().__init_subclass__()
        hints = _hints(cls)
        for name in vars(cls).get("__annotations__", {}):
            if get_origin(hints[name]) is not ClassVar:
                _form(f"{cls.__name__}.{name}", hints[name], vars(cls).get(name))
        Payload.types[cls.full_name()] = cls

    @classmethod
    def full_name(cls) -> str:
        """The class's name with its module's."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        """The fields that travel; asked once per class.

        Raises:
            TypeError: when the class is no dataclass.
        """
        if cls not in _DECLARED:
            _DECLARED[cls] = _fields(cls)
        return _DECLARED[cls]

    def items(self) -> Iterator[Placed]:
        """Yield everything that travels with its place, mappings leaf by leaf."""
        for field in self.declared():
            value = getattr(self, field.name)
            if not isinstance(value, Tensor) and isinstance(value, Mapping):
                for path, leaf in leaves(value):
                    yield Placed(".".join((field.name, *path)), field.kind, (), leaf)
            else:
                yield Placed(field.name, field.kind, field.axes, value)

    def tensors(self) -> Iterator[Placed]:
        """Yield every tensor with its place."""
        return (item for item in self.items() if isinstance(item.value, Tensor))

    def map(self, function: Callable[[Kind, Tensor], Tensor]) -> Payload:
        """A payload of the same type with `function(kind, tensor)` applied to every tensor."""
        changed = {
            field.name: _mapped(function, field.kind, getattr(self, field.name))
            for field in self.declared()
        }
        return dataclasses.replace(self, **changed)


PayloadTypes: TypeAlias = tuple[type[Payload], ...]

_DECLARED: dict[type[Payload], tuple[Declared, ...]] = {}
_FORMS: Mapping[Any, Form] = {Tensor: "tensor", int: "int", float: "float"}


def _fields(owner: type[Payload]) -> tuple[Declared, ...]:
    hints = _hints(owner)
    fields = dataclasses.fields(owner)
    lost = [name for name in vars(owner).get("__annotations__", {}) if name in hints]
    lost = [name for name in lost if name not in {field.name for field in fields}]
    if any(get_origin(hints[name]) is not ClassVar for name in lost):
        raise TypeError(f"{owner.__name__} is no dataclass; write @dataclass(frozen=True) above it")
    return tuple(
        dataclasses.replace(
            field.metadata[_DECLARATION],
            name=field.name,
            form=_form(f"{owner.__name__}.{field.name}", hints[field.name], field),
        )
        for field in fields
    )


def _hints(owner: type[Payload]) -> dict[str, Any]:
    """The types of a payload's fields.

    Raises:
        TypeError: when one has a name that the module does not know.
    """
    try:
        return get_type_hints(owner)
    except NameError as error:
        raise TypeError(
            f"{owner.__name__}: {error}; a field's type is Tensor, Mapping[str, Tensor], int or "
            "float, imported where the class is"
        ) from None


def _form(place: str, hint: Any, field: Any) -> Form:
    """What a field is by its type hint.

    Raises:
        TypeError: when it is not declared, or of a type that cannot be checked and counted.
    """
    if not isinstance(field, dataclasses.Field) or _DECLARATION not in field.metadata:
        raise TypeError(f"{place} is not declared: give it a payload_field(kind, axes)")
    form = _FORMS.get(hint, "mapping" if _is_mapping(hint) else None)
    if form is None:
        said = hint.__name__ if isinstance(hint, type) else hint
        raise TypeError(
            f"{place} is of type {said}; a field that travels is a Tensor, a Mapping[str, Tensor], "
            "nested or not, an int or a float: nothing else can be checked and counted"
        )
    if form != "tensor" and field.metadata[_DECLARATION].axes:
        raise TypeError(f"{place} has axes, but only a Tensor has a shape to declare")
    return form


def _is_mapping(hint: Any) -> bool:
    """Whether a type is a mapping of tensors by name, nested or not."""
    if get_origin(hint) not in (Mapping, dict):
        return False
    key, value = get_args(hint)
    return key is str and (value is Tensor or _is_mapping(value))


def _mapped(function: Callable[[Kind, Tensor], Tensor], kind: Kind, value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(kind, value)
    if isinstance(value, Mapping):
        return {key: _mapped(function, kind, item) for key, item in value.items()}
    return value
