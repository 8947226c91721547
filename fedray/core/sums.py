"""Sums over a round's uploads, which the server makes.

The uploads are sorted by client and added pairwise: the first half, the second half, then both.
Pairwise addition loses less precision than one upload after the other, and its result depends on
the uploads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedray.core.state import StateTree, Tensors, is_tree


@dataclass(frozen=True)
class Total:
    """The sums over all uploads of one exchange.

    Attributes:
        clients: ids of the clients that uploaded, sorted.
        sums: real numbers added, integers' maximum (the policy for counters), under the names that
            the summands give them; {} where no client uploaded.
    """

    clients: tuple[int, ...]
    sums: StateTree

    def __getitem__(self, name: str) -> Any:
        return self.sums[name]

    def __len__(self) -> int:
        return len(self.clients)


def total_of(summand: Callable[[Any], StateTree], uploads: Mapping[int, Any]) -> Total:
    """Return the sums over uploads, whose summands are nested mappings of tensors.

    Raises:
        ValueError: if the summands do not have the same names.
    """
    clients = tuple(sorted(uploads))
    return Total(clients, _sum(summand, [uploads[each] for each in clients]) if clients else {})


def _sum(summand: Callable[[Any], StateTree], uploads: Sequence[Any]) -> StateTree:
    """Return the sum of at least one upload; few summands are in memory at a time."""
    if len(uploads) == 1:
        return summand(uploads[0])
    middle = len(uploads) // 2
    left, right = _sum(summand, uploads[:middle]), _sum(summand, uploads[middle:])
    return _added(left, right, in_place=middle > 1)  # a single summand may be part of its upload


def weighed(tensors: Mapping[str, Tensor], weight: float) -> Tensors:
    """Return p_k w_k in double precision, so that a sum of many is exact to a float's last digit.

    Counters stay: the sum of integers is their maximum.
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
    """Return the mean: sums of `weighed` tensors over the sum of their weights; counters stay.

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


def _added(left: StateTree, right: StateTree, *, in_place: bool) -> StateTree:
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())[0]
        raise ValueError(f"only some of the uploads have '{odd}', so they have no sum")
    return {name: _plus(value, right[name], in_place=in_place) for name, value in left.items()}


def _plus(left: Any, right: Any, *, in_place: bool) -> Any:
    if is_tree(left):
        return _added(left, right, in_place=in_place)
    if not left.is_floating_point():
        return torch.maximum(left, right)
    return left.add_(right) if in_place else left + right
