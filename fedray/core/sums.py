"""Sums over a round's uploads, made where the clients run: the same bits wherever that is.

The uploads stand in client order, at positions 0 to n - 1, and are added up along a tree that only
n decides: `[first, end)` is what its two halves add up to. Whoever ran some clients adds up the
whole subtrees that it has, and the server the rest, so that every addition is the same one for any
number of workers and any division of clients among them. A client that did not upload is an empty
leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray.core.state import StateTree, Tensors, is_tree

Summand = Callable[[Any], StateTree]
"""What one upload adds to each sum: nested mappings of tensors that nobody else changes."""


class Part(NamedTuple):
    """What the uploads at positions `[first, end)` add up to, a whole subtree.

    Attributes:
        first: the first position.
        end: the position after the last.
        clients: whose uploads are in it, sorted.
        sums: real numbers added, integers' maximum; None where nobody uploaded.
    """

    first: int
    end: int
    clients: tuple[int, ...] = ()
    sums: StateTree | None = None


@dataclass(frozen=True)
class Total:
    """What all uploads of one exchange add up to.

    Attributes:
        clients: whose uploads are in it, sorted; nobody's where all failed.
        sums: real numbers added, integers' maximum (the policy for counters), as `summand` names
            them; {} where nobody uploaded.
    """

    clients: tuple[int, ...] = ()
    sums: StateTree | None = None

    def __getitem__(self, name: str) -> Any:
        return (self.sums or {})[name]

    def __len__(self) -> int:
        return len(self.clients)


class TreeSum:
    """Adds up what comes in any order, along the tree.

    Args:
        positions: those of the clients that may be added here.
        leaves: n, the number of positions in all.
    """

    def __init__(self, positions: Mapping[int, int], leaves: int) -> None:
        self.positions = positions
        self.leaves = leaves
        self._parts: dict[tuple[int, int], Part] = {}

    @classmethod
    def of(cls, clients: Iterable[int]) -> TreeSum:
        """The sum over clients, which are positioned by their ids."""
        positions = {client: position for position, client in enumerate(sorted(clients))}
        return cls(positions, len(positions))

    def add(self, client: int, summand: StateTree | None) -> None:
        """Add what one client's upload adds; None for one that did not upload."""
        first = self.positions[client]
        self.join(Part(first, first + 1, () if summand is None else (client,), summand))

    def join(self, part: Part) -> None:
        """Add what a whole subtree adds up to."""
        for first, end in reversed(list(_above(part.first, part.end, self.leaves))):
            middle = (first + end) // 2
            other = (middle, end) if part.first == first else (first, middle)
            if other not in self._parts:
                break
            left, right = sorted((part, self._parts.pop(other)), key=lambda each: each.first)
            part = _joined(left, right)
        self._parts[part.first, part.end] = part

    def parts(self) -> list[Part]:
        """The largest whole subtrees of what was added, in order."""
        return [part for _, part in sorted(self._parts.items())]

    def total(self) -> Total:
        """The sum; leaves that were not added are empty."""
        part = self._of(0, self.leaves)
        return Total(part.clients, part.sums)

    def _of(self, first: int, end: int) -> Part:
        if (first, end) in self._parts:
            return self._parts[first, end]
        if end - first < 2:
            return Part(first, end)
        middle = (first + end) // 2
        return _joined(self._of(first, middle), self._of(middle, end))


def total_of(summand: Summand, uploads: Mapping[int, Any]) -> Total:
    """What uploads that came one by one add up to, by the same tree over those that came.

    Args:
        summand: what an upload adds.
        uploads: by client.
    """
    total = TreeSum.of(uploads)
    for client, upload in uploads.items():
        total.add(client, summand(upload))
    return total.total()


def cut_depth(position: int, leaves: int) -> int:
    """How far down the tree its halves meet at a position: 0 for the middle of all leaves."""
    first, end, depth = 0, leaves, 0
    while position != (middle := (first + end) // 2) and end - first > 1:
        first, end = (first, middle) if position < middle else (middle, end)
        depth += 1
    return depth


def weighed(tensors: Mapping[str, Tensor], weight: float) -> Tensors:
    """p_k w_k, in double precision, in which a sum of many is exact to the last digit of a float.

    Counters stay: of integers a sum takes the maximum.
    """
    return {
        name: tensor.double() * weight if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def mean_of(
    sums: Mapping[str, Tensor], weight: float | Tensor, like: Mapping[str, Tensor]
) -> Tensors:
    """The mean: sums of `weighed` tensors over the sum of their weights, and counters as they are.

    Args:
        sums: of each name.
        weight: sum_k p_k.
        like: tensors of these names, which have the names' order and types.
    """
    return {
        name: (sums[name] / weight).to(tensor.dtype) if tensor.is_floating_point() else sums[name]
        for name, tensor in like.items()
        if name in sums
    }


def _above(first: int, end: int, leaves: int) -> Iterator[tuple[int, int]]:
    """Yield the subtrees that a subtree is in, the largest first.

    Raises:
        ValueError: when it is none.
    """
    low, high = 0, leaves
    while (low, high) != (first, end):
        middle = (low + high) // 2
        if high - low < 2 or first < middle < end:
            raise ValueError(f"positions {first} to {end} of {leaves} are no subtree")
        yield low, high
        low, high = (low, middle) if first < middle else (middle, high)


def _joined(left: Part, right: Part) -> Part:
    return Part(left.first, right.end, left.clients + right.clients, _added(left.sums, right.sums))


def _added(left: StateTree | None, right: StateTree | None) -> StateTree | None:
    """What two sums add up to.

    Raises:
        ValueError: when they do not have the same names.
    """
    if left is None or right is None:
        return right if left is None else left
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())[0]
        raise ValueError(f"only some of the uploads have '{odd}', so they have no sum")
    return {name: _plus(value, right[name]) for name, value in left.items()}


def _plus(left: Any, right: Any) -> Any:
    if is_tree(left):
        return _added(left, right)
    return left + right if left.is_floating_point() else torch.maximum(left, right)
