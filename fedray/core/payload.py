"""What travels between clients and server: declared fields, each of one kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

from fedray.core.state import leaves
from fedray.errors import nearest

Kind: TypeAlias = Literal[
    "weights", "prototypes", "logits", "text_embeddings", "prompts", "images", "statistics"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


def payload_field(kind: Kind, shape: str = "") -> Any:
    """Declare a field of a payload.

    Args:
        kind: what is counted: "weights", "prototypes", ...
        shape: axis names, for example "C d". An axis that the setting knows (C classes, d feature
            width) must have that size; any other axis must agree within the payload. "" is a
            plain number, or a mapping of named tensors of any shape, nested or not.

    Raises:
        ValueError: when there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}' of payload field.{nearest(kind, KINDS)}")
    return dataclasses.field(metadata={"kind": kind, "axes": tuple(shape.split())})


class Declared(NamedTuple):
    """A field as a payload's class declares it."""

    name: str
    kind: Kind
    axes: tuple[str, ...]


class Placed(NamedTuple):
    """A tensor or a number of a payload, and where it stands: "weights.head.bias"."""

    place: str
    kind: Kind
    axes: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Payload:
    """Base of everything that travels; subclasses are frozen dataclasses of `payload_field`s.

    A field is a tensor, a mapping of named tensors, or a plain number. Receivers must not change
    the tensors in place: one download is handed to many clients.
    """

    reveals: ClassVar[str] = ""
    """What whoever reads it learns of clients, half a sentence; for docs/privacy.md."""
    types: ClassVar[dict[str, type[Payload]]] = {}
    """Every kind of payload, by its full name; two methods may use one short name."""

    def __init_subclass__(cls) -> None:
        Payload.types[cls.full_name()] = cls

    @classmethod
    def full_name(cls) -> str:
        """The class's name with its module's."""
        return f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def declared(cls) -> tuple[Declared, ...]:
        """The fields that travel; asked once per class.

        Raises:
            TypeError: when a field is no `payload_field`.
        """
        if cls not in _DECLARED:
            _DECLARED[cls] = tuple(_declared(cls, field) for field in dataclasses.fields(cls))
        return _DECLARED[cls]

    def items(self) -> Iterator[Placed]:
        """Yield everything that travels with its place, mappings leaf by leaf."""
        for name, kind, axes in self.declared():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                for path, leaf in leaves(value):
                    yield Placed(".".join((name, *path)), kind, (), leaf)
            else:
                yield Placed(name, kind, axes, value)

    def tensors(self) -> Iterator[Placed]:
        """Yield every tensor with its place."""
        return (item for item in self.items() if isinstance(item.value, Tensor))

    def map(self, function: Callable[[Kind, Tensor], Tensor]) -> Payload:
        """A payload of the same type with `function(kind, tensor)` applied to every tensor."""
        changed = {
            name: _mapped(function, kind, getattr(self, name)) for name, kind, _ in self.declared()
        }
        return dataclasses.replace(self, **changed)


PayloadTypes: TypeAlias = tuple[type[Payload], ...]

_DECLARED: dict[type[Payload], tuple[Declared, ...]] = {}


def _declared(owner: type[Payload], field: dataclasses.Field[Any]) -> Declared:
    if "kind" not in field.metadata:
        raise TypeError(
            f"{owner.__name__}.{field.name} is not declared: give it a payload_field(kind, axes)"
        )
    return Declared(field.name, field.metadata["kind"], field.metadata["axes"])


def _mapped(function: Callable[[Kind, Tensor], Tensor], kind: Kind, value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(kind, value)
    if isinstance(value, Mapping):
        return {key: _mapped(function, kind, item) for key, item in value.items()}
    return value
