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

from fedray.core.state import StateTree, Tensors, is_tree

Summand: TypeAlias = Callable[[Any], StateTree]
"""Returns the terms that an upload adds to each sum."""


@dataclass(frozen=True)
class Total:
    """The sums over the uploads of one exchange.

    Attributes:
        clients: ids of the clients that uploaded, sorted.
        sums: the sums by the names in the summands; integer tensors, which are counters, take the
            maximum. {} if no client uploaded.
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
    """
    sums = Sums(len(uploads))
    for client in sorted(uploads):
        sums.add(Total((client,), summand(uploads[client])))
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
            in_place: whether the sums may be changed; False if they share memory with uploads.

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


def mean_of(
    sums: Mapping[str, Tensor], weight: float | Tensor, like: Mapping[str, Tensor]
) -> Tensors:
    """Return the mean, sums of `weighed` tensors divided by the sum of weights.

    Args:
        sums: the sum of each name; integer tensors, which are counters, are not divided.
        weight: sum_k p_k.
        like: tensors that determine the order and the dtypes of the result.
    """
    return {
        name: (sums[name] / weight).to(tensor.dtype) if tensor.is_floating_point() else sums[name]
        for name, tensor in like.items()
        if name in sums
    }


def _add_trees(first: StateTree, second: StateTree, *, in_place: bool) -> StateTree:
    if first.keys() != second.keys():
        name = sorted(first.keys() ^ second.keys())[0]
        raise ValueError(f"only some of the uploads have '{name}', so they have no sum")
    return {name: _add(value, second[name], in_place=in_place) for name, value in first.items()}


def _add(first: Any, second: Any, *, in_place: bool) -> Any:
    if is_tree(first):
        return _add_trees(first, second, in_place=in_place)
    if not first.is_floating_point():
        return torch.maximum(first, second)
    if first.shape != second.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"uploads of the shapes {shapes} have no sum")
    return first.add_(second) if in_place else first + second
