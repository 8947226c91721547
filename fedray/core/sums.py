"""Sums over a round's uploads, equal bit for bit on every executor.

Clients are sorted, and their uploads are added pairwise: the sum of the first half plus the sum of
the second half, recursively. A process that ran all clients of a subtree adds up the subtree, and
the server joins the results. The additions are therefore the same for any division of the clients
among workers. Pairwise addition also loses less precision than sequential addition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedray.core.state import StateTree, Tensors, is_tree


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


def total_of(summand: Callable[[Any], StateTree], uploads: Mapping[int, Any]) -> Total:
    """Return the sums over uploads.

    Args:
        summand: returns the terms that an upload adds, a nested mapping of tensors.
        uploads: uploads by client id.

    Raises:
        ValueError: if the summands do not have the same names.
    """
    return total_over(sorted(uploads), lambda client: summand(uploads[client]))


def total_over(
    clients: Sequence[int], summand: Callable[[int], StateTree | None], *, in_place: bool = False
) -> Total:
    """Return the sums over clients, computing one summand after the other.

    Args:
        clients: sorted ids.
        summand: returns the terms that a client's upload adds; None without upload.
        in_place: whether summands may be changed; False if they may share memory with uploads.

    Raises:
        ValueError: if the summands do not have the same names.
    """
    if not clients:
        return Total()
    if len(clients) == 1:
        sums = summand(clients[0])
        return Total() if sums is None else Total((clients[0],), sums)
    first, second = (total_over(half, summand, in_place=in_place) for half in halves(clients))
    return _join(first, second, in_place=in_place or len(first) > 1)


def joined(clients: Sequence[int], blocks: Mapping[tuple[int, ...], Total]) -> Total:
    """Return the sums over clients from the totals of blocks.

    Args:
        clients: sorted ids.
        blocks: the total of each block by its ids; blocks result from repeated `halves`.
    """
    if (total := blocks.get(tuple(clients))) is not None:
        return total
    first, second = (joined(half, blocks) for half in halves(clients))
    return _join(first, second, in_place=False)  # blocks may be in shared memory


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


def _join(first: Total, second: Total, *, in_place: bool) -> Total:
    if not (first.clients and second.clients):
        return first if first.clients else second
    sums = _add_trees(first.sums, second.sums, in_place=in_place)
    return Total(first.clients + second.clients, sums)


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
    return first.add_(second) if in_place else first + second
