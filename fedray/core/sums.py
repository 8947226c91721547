"""Sums over a round's uploads, equal bit for bit on every executor.

Clients are sorted, and their uploads are added pairwise: the sum of the first half plus the sum of
the second half, recursively. A process that ran all clients of a subtree adds up the subtree, and
the server joins the results. The additions are therefore the same for any division of the clients
among workers. Pairwise addition also loses less precision than sequential addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedray.core.flat import Flat, Layout
from fedray.core.payload import Payload
from fedray.trees import StateTree, Tensors, is_tree, leaves, map_tensors

Summand: TypeAlias = Callable[[Any], StateTree]
"""Returns the terms that an upload adds to each sum."""
Summands: TypeAlias = Callable[[Sequence[Any]], StateTree]
"""Returns the terms of several uploads as rows."""


@dataclass(frozen=True)
class Total:
    """The sums over the uploads of one exchange.

    Attributes:
        clients: ids of the clients that uploaded, sorted.
        sums: the sums by the names in the summands; counters of a model, which are integers, take
            the maximum. {} if no client uploaded.
    """

    clients: tuple[int, ...] = ()
    sums: StateTree = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return the sum of this name."""
        return self.sums[name]

    def __len__(self) -> int:
        return len(self.clients)


def total_of(summand: Summand, uploads: Mapping[int, Any]) -> Total:
    """Return the sums over uploads.

    Args:
        summand: returns the terms that an upload adds, a nested mapping of tensors.
        uploads: uploads by client id.

    Raises:
        ValueError: if the summands do not have the same names.
        TypeError: if a term of a payload has no sum.
    """
    sums = Sums(len(uploads))
    for client in sorted(uploads):
        terms = summand(uploads[client])
        if isinstance(uploads[client], Payload):
            check_terms(terms, uploads[client])
        sums.add(Total((client,), terms))
    return sums.total


class Sums:
    """Adds up terms of clients, in their order: a stack of the subtrees that are complete.

    Args:
        count: the number of clients.

    Attributes:
        total: the sums over all clients, once all are added.
    """

    def __init__(self, count: int) -> None:
        self.total = Total()
        self._joins = joins(count)
        self._done = 0
        self._stack: list[tuple[Total, bool]] = []

    def add(self, part: Total, size: int = 1, *, in_place: bool = False) -> None:
        """Add the sums of the next subtree, and complete the subtrees that end with it.

        Args:
            part: the sums; without clients if none of them uploaded.
            size: the subtree's number of clients, with or without upload.
            in_place: whether the sums may be changed; False if they share memory with anything.

        Raises:
            ValueError: if the summands do not have the same names.
        """
        self._done += size
        for _ in range(self._joins[self._done - 1] - joins(size)[-1]):
            first, is_own = self._stack.pop()
            if first.clients and part.clients:
                sums = _add_trees(first.sums, part.sums, in_place=is_own)
                part, in_place = Total(first.clients + part.clients, sums), True
            elif first.clients:
                part, in_place = first, is_own
        self._stack.append((part, in_place))
        self.total = self._stack[0][0]

    def add_rows(self, clients: Sequence[int], rows: StateTree) -> None:
        """Add the terms of all clients of the next subtree, in a few operations.

        Args:
            clients: their ids, sorted.
            rows: their terms, a row each, as `stack_trees` returns them.
        """
        total = Total(tuple(clients), _mapped(_sum_of_rows, rows))
        self.add(total, len(clients), in_place=True)


def check_terms(terms: StateTree, upload: Any) -> StateTree:
    """Return the terms of an upload; raise a TypeError for one that has no sum.

    A term is a tensor of floating-point numbers, or a counter: an integer or boolean tensor of the
    upload in a mapping that is declared to hold a model's counters.
    """
    wrong = [
        (".".join(path), value)
        for path, value in leaves(terms)
        if not (isinstance(value, Tensor) and value.is_floating_point())
    ]
    if not wrong:
        return terms
    counters = set[int]()
    if isinstance(upload, Payload):
        declared = {name for name, field in upload.declared.items() if field.counters}
        fields = {name: value for name, value in vars(upload).items() if name in declared}
        counters = {value.data_ptr() for path, value in leaves(fields) if len(path) > 1}
    for place, value in wrong:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise TypeError(f"summand returned a {kind} as '{place}', expected a tensor")
        if value.data_ptr() not in counters:
            raise TypeError(
                f"summand returned {value.dtype} as '{place}', which is not added up (counters of "
                "a model, the only integers in a sum, take the maximum); return value.double()"
            )
    return terms


def stack_trees(trees: Sequence[StateTree]) -> dict[str, Any]:
    """Return a tree whose tensors stack those of several trees as rows.

    Raises:
        ValueError: if the trees do not have the same names and shapes.
    """
    stacked: dict[str, Any] = {}
    for other in trees[1:]:
        _check_names(trees[0], other)
    for name, value in trees[0].items():
        values = [tree[name] for tree in trees]
        if is_tree(value):
            stacked[name] = stack_trees(values)
            continue
        for other in values[1:]:
            _check_shapes(value, other)
        stacked[name] = torch.stack(values)
    return stacked


def _mapped(function: Callable[[Tensor], Tensor], tree: StateTree) -> dict[str, Any]:
    """Return the tree with the results for every tensor, or for whole vectors."""
    return {
        name: value.map(function)
        if isinstance(value, Flat)
        else (_mapped(function, value) if is_tree(value) else function(value))
        for name, value in tree.items()
    }


def _sum_of_rows(rows: Tensor) -> Tensor:
    return _pairwise(rows, 0) if rows.is_floating_point() else rows.amax(0)


def _pairwise(rows: Tensor, axis: int) -> Tensor:
    """Add up rows along an axis in the order of `joins`; equal halves are computed together."""
    count = rows.shape[axis]
    if count == 1:
        return rows.squeeze(axis)
    half = count // 2
    if count % 2:
        first, second = rows.narrow(axis, 0, half), rows.narrow(axis, half, count - half)
        return _pairwise(first, axis) + _pairwise(second, axis)
    halved = rows.reshape(*rows.shape[:axis], 2, half, *rows.shape[axis + 1 :])
    first, second = _pairwise(halved, axis + 1).unbind(axis)
    return first + second


def joins(count: int) -> list[int]:
    """Return for each client how many of the subtrees with several clients end with it."""
    ends, spans = [0] * count, [(0, count)]
    for start, stop in spans:  # grows
        if stop - start > 1:
            ends[stop - 1] += 1
            middle = start + (stop - start) // 2
            spans += [(start, middle), (middle, stop)]
    return ends


def halves(clients: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the two halves of at least two clients."""
    middle = len(clients) // 2
    return clients[:middle], clients[middle:]


def weighed(tensors: Mapping[str, Tensor], weight: float) -> Tensors:
    """Return p_k w_k in double precision, so that sums are exact to the last digit of a float32.

    Integer tensors, which are counters, are returned unchanged; their sum is the maximum.
    """
    return {
        name: tensor.to(torch.double, copy=True).mul_(weight)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in tensors.items()
    }


def weighed_rows(
    tensors: Sequence[Mapping[str, Tensor]], weights: Sequence[float]
) -> Mapping[str, Tensor]:
    """Return `weighed` of several clients, whose tensors are rows of the result."""
    factors = torch.tensor(weights, dtype=torch.double)

    def weigh(rows: Tensor) -> Tensor:
        if not rows.is_floating_point():
            return rows
        return rows.double().mul_(factors.view(-1, *[1] * (rows.dim() - 1)))

    flat = [t for t in tensors if isinstance(t, Flat) and t.layout is _layout_of(tensors[0])]
    if len(flat) < len(tensors):
        return map_tensors(weigh, stack_trees(tensors))
    vectors = zip(*(one.vectors for one in flat), strict=True)
    return Flat(flat[0].layout, [weigh(torch.stack(rows)) for rows in vectors])


def mean_of(
    sums: Mapping[str, Tensor], weight: float | Tensor, like: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Return the mean, sums of `weighed` tensors divided by the sum of weights.

    Args:
        sums: the sum of each name; integer tensors, which are counters, are not divided.
        weight: sum_k p_k.
        like: tensors that determine the order and the dtypes of the result.
    """

    def mean(total: Tensor, tensor: Tensor) -> Tensor:
        return (total / weight).to(tensor.dtype) if tensor.is_floating_point() else total

    if isinstance(sums, Flat) and isinstance(like, Flat) and sums.layout is like.layout:
        pairs = zip(sums.vectors, like.vectors, strict=True)
        return Flat(like.layout, [mean(*pair) for pair in pairs])
    return {name: mean(sums[name], tensor) for name, tensor in like.items() if name in sums}


def _layout_of(tensors: Mapping[str, Tensor]) -> Layout | None:
    return tensors.layout if isinstance(tensors, Flat) else None


def _add_trees(first: StateTree, second: StateTree, *, in_place: bool) -> StateTree:
    if isinstance(first, Flat) and isinstance(second, Flat) and first.layout is second.layout:
        pairs = zip(first.vectors, second.vectors, strict=True)
        return Flat(first.layout, [_add(one, two, in_place=in_place) for one, two in pairs])
    _check_names(first, second)
    return {name: _add(value, second[name], in_place=in_place) for name, value in first.items()}


def _add(first: Any, second: Any, *, in_place: bool) -> Any:
    if is_tree(first):
        return _add_trees(first, second, in_place=in_place)
    if not first.is_floating_point():
        return torch.maximum(first, second)
    _check_shapes(first, second)
    return first.add_(second) if in_place else first + second


def _check_names(first: StateTree, second: StateTree) -> None:
    if first.keys() != second.keys():
        name = sorted(first.keys() ^ second.keys())[0]
        raise ValueError(f"only some of the uploads have '{name}', so they have no sum")


def _check_shapes(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"uploads of the shapes {shapes} have no sum")
