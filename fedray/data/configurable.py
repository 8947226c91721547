"""What is chosen by name in `data.*`: made from its typed parameters, equal by value."""

from __future__ import annotations

from typing import Any, ClassVar

from fedray.config import Component, Frozen, NoParams, parameters
from fedray.registry import registry


class Configurable:
    """Base of sources, partitions and augmentations.

    Two instances of a class with equal parameters are equal.

    Args:
        params: an instance of `Params`; None takes every default.
    """

    name: ClassVar[str]
    """What the experiment calls it."""
    Params: ClassVar[type[Frozen]] = NoParams
    """The type of its parameters."""
    params: Frozen
    """Its parameters; a subclass that has some repeats this line with their type."""

    def __init__(self, params: Frozen | None = None) -> None:
        self.params = self.Params() if params is None else params

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.params == self.params

    def __hash__(self) -> int:
        return hash((type(self), self.params))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.params!r})"


def build(component: Component, kind: str, key: str) -> Any:
    """Make what a component names from its checked parameters.

    Args:
        component: the name and its parameters.
        kind: the kind of thing, a key of `fedray.registry.HOMES`.
        key: the experiment's key, for messages.

    Raises:
        UserError: when there is no such entry, or a parameter is unknown or out of bounds.
    """
    return registry(kind).get(component.name)(parameters(component, kind, key))
