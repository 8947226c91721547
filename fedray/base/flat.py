"""Named tensors as views of one vector per type of number.

Loading, copying, weighing and adding the tensors of a model is then one operation on each vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedray.base.trees import ALIGNMENT, StateTree, is_tree, moved_to

Form: TypeAlias = tuple[str, torch.dtype, tuple[int, ...]]
"""Name, type and shape of a tensor."""


class Slot(NamedTuple):
    """Where a tensor stands: the number of its vector, its first element, shape and strides."""

    vector: int
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Layout:
    """Names, types and shapes of tensors, and their places in one vector per type.

    Layouts of the same tensors are one object (`layout_of`). What lies between two tensors is zero;
    it is neither sent nor counted.

    Attributes:
        forms: name, type and shape of each tensor, in order.
        places: the place of each tensor by name.
        sizes: type and length of each vector.
        structure: name, type and shape of each tensor, as of any mapping (`structure_of`).
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = tuple(forms)
        self.structure = tuple((n, (dtype, torch.Size(shape))) for n, dtype, shape in forms)
        self.places: dict[str, Slot] = {}
        lengths: dict[torch.dtype, int] = {}
        for name, dtype, shape in self.forms:
            start, whole = lengths.setdefault(dtype, 0), ALIGNMENT // dtype.itemsize
            stride = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
            self.places[name] = Slot([*lengths].index(dtype), start, shape, stride)
            lengths[dtype] = start + -(-prod(shape) // whole) * whole
        self.sizes = tuple(lengths.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return layout_of, (self.forms,)

    def empty(self, *rows: int, device: torch.device | None = None) -> Flat:
        """Return zeros in this layout; with `rows`, as many in one matrix [rows, P] per type."""
        sizes = self.sizes
        return Flat(self, [torch.zeros(*rows, n, dtype=t, device=device) for t, n in sizes])

    def views(self, vectors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the tensors by name as views of vectors [..., P], with the same leading axes."""
        views = {}
        for name, (vector, start, shape, stride) in self.places.items():
            whole = vectors[vector]
            rows, steps, first = whole.shape[:-1], whole.stride()[:-1], whole.storage_offset()
            views[name] = whole.as_strided((*rows, *shape), (*steps, *stride), first + start)
        return views


@lru_cache(maxsize=1024)
def layout_of(forms: tuple[Form, ...]) -> Layout:
    """Return the one layout of tensors with these names, types and shapes."""
    return Layout(forms)


class Flat(Mapping[str, Tensor]):
    """Tensors by name, which are views of the vectors of a layout.

    Attributes:
        layout: the places of the tensors.
        vectors: one vector [P] per type; for several rows, matrices [rows, P].
    """

    def __init__(self, layout: Layout, vectors: Sequence[Tensor]) -> None:
        self.layout = layout
        self.vectors = vectors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Flat:
        """Return a copy of tensors in one layout, on their device."""
        forms = ((name, t.dtype, tuple(t.shape)) for name, t in tensors.items())
        first = next(iter(tensors.values()), None)
        device = None if first is None else first.device
        flat = layout_of(tuple(forms)).empty(device=device)
        flat.copy_(tensors)
        return flat

    def rows(self) -> list[Flat]:
        """Return the rows of matrices, which are views."""
        return [Flat(self.layout, vectors) for vectors in zip(*self.vectors, strict=True)]

    @cached_property
    def _views(self) -> dict[str, Tensor]:
        return self.layout.views(self.vectors)

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.places)

    def __len__(self) -> int:
        return len(self.layout.places)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.places

    def keys(self) -> Any:
        """Return the names."""
        return self.layout.places.keys()

    def values(self) -> Any:
        """Return the tensors."""
        return self._views.values()

    def items(self) -> Any:
        """Return names and tensors."""
        return self._views.items()

    def __reduce__(self) -> tuple[Any, ...]:
        return Flat, (self.layout, self.vectors)

    def map(self, function: Callable[[Tensor], Tensor]) -> Flat:
        """Return the results of a function of every vector, in the same layout.

        The types of the results may differ from those of the layout.
        """
        return Flat(self.layout, [function(vector) for vector in self.vectors])

    def clone(self) -> Flat:
        """Return a copy."""
        return self.map(torch.clone)

    def copy_(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite all tensors with those of the same names, which have their shapes."""
        if isinstance(tensors, Flat) and tensors.layout is self.layout:
            for vector, other in zip(self.vectors, tensors.vectors, strict=True):
                vector.copy_(other)
        elif self.layout.places:
            values = [tensors[name].detach() for name in self.layout.places]
            if values[0].device != self.vectors[0].device:  # pack them for one copy of each type
                packed = self.layout.empty(device=values[0].device)
                packed.copy_(tensors)
                self.copy_(packed)
            else:
                torch._foreach_copy_([*self.values()], values)


def structure_of(value: Any) -> object:
    """Return dtypes and shapes of a value, equal for alike values; for a number, its type."""
    if type(value) is Flat:
        return value.layout.structure
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    if not isinstance(value, int | float) and is_tree(value):
        return tuple([(name, structure_of(inner)) for name, inner in value.items()])
    return type(value)


def tensor_blocks(value: Any) -> Sequence[Tensor]:
    """Return the tensors of a value, those of a `Flat` as its vectors."""
    if type(value) is Flat:
        return value.vectors
    if isinstance(value, Tensor):
        return (value,)
    return [block for v in value.values() for block in tensor_blocks(v)] if is_tree(value) else ()


def map_blocks(function: Callable[..., Tensor], value: Any, *others: Any) -> Any:
    """Return a value with the results of a function for the tensors in one place of all values.

    The function gets whole vectors where all values are a `Flat` of one layout.

    Raises:
        ValueError: if the values do not have the same names.
    """
    if isinstance(value, Tensor):
        return function(value, *others)
    if type(value) is Flat:
        vectors = [o.vectors for o in others if type(o) is Flat and o.layout is value.layout]
        if len(vectors) == len(others):
            return Flat(value.layout, [*map(function, value.vectors, *vectors)])
    if not is_tree(value):
        return value
    names = value.keys()
    for other in others:
        if other.keys() != names:
            raise ValueError(f"only some have '{min(other.keys() ^ names)}'")
    return {
        name: map_blocks(function, inner, *[other[name] for other in others])
        for name, inner in value.items()
    }


def moved_trees(trees: Sequence[StateTree], device: torch.device) -> list[StateTree]:
    """Return trees on a device; what lies elsewhere is copied at once (`moved_to`)."""
    blocks = [tensor_blocks(tree) for tree in trees]
    away = [n for n, of in enumerate(blocks) if any([b.device != device for b in of])]  # noqa: C419
    moved, results = iter(moved_to([b for n in away for b in blocks[n]], device)), [*trees]
    for n in away:
        results[n] = map_blocks(lambda _: next(moved), trees[n])
    return results
