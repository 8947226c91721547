"""Objects that `data.*` keys name: built from typed parameters, and equal by value."""

from __future__ import annotations

from typing import ClassVar

from fedray.config import Frozen, NoParams


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
    paper: ClassVar[str] = "-"
    """Authors, venue and arXiv number; "-" if there is no paper."""
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
