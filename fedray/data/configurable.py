"""Objects that `data.*` keys name: built from typed parameters, and equal by value."""

from __future__ import annotations

from typing import Any, ClassVar

from fedray.config import Component, Frozen, NoParams, parameters
from fedray.registry import registry


class Configurable:
    """Base of sources, partitions and augmentations.

    Two instances of a class are equal if their parameters are equal.

    Args:
        params: an instance of `Params`; None uses all defaults.
    """

    name: ClassVar[str]
    """The name in an experiment."""
    version: ClassVar[int] = 1
    """The version of the code; raised by a commit that changes its numbers."""
    Params: ClassVar[type[Frozen]] = NoParams
    """The type of the parameters."""
    params: Frozen
    """The parameters; a subclass that has some redeclares this attribute with their type."""

    def __init__(self, params: Frozen | None = None) -> None:
        self.params = self.Params() if params is None else params

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.params == self.params

    def __hash__(self) -> int:
        return hash((type(self), self.params))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.params!r})"


def build(component: Component, kind: str, key: str) -> Any:
    """Build the object that a component names, with checked parameters.

    Args:
        component: the name and its parameters.
        kind: the kind of object, a key of `fedray.registry.HOMES`.
        key: the experiment's key, for messages.

    Raises:
        UserError: if the name is unknown, or a parameter is unknown or out of bounds.
    """
    return registry(kind).get(component.name)(parameters(component, kind, key))
