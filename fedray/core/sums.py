"""Sums over a round's uploads, the same to the last bit in every executor.

The clients are sorted and their uploads added pairwise: the first half, the second half, then both.
The process that ran the clients of a whole subtree can add them up, and the server joins the
results, so each addition is the same one for any division of the clients among workers.
Pairwise addition also loses less precision than one upload after the other.
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
        sums: real numbers added, integers' maximum (the policy for counters), under the names that
            the summands give them; {} where no client uploaded.
    """

    clients: tuple[int, ...] = ()
    sums: StateTree = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return the sum of this name."""
        return self.sums[name]

    def __len__(self) -> int:
        return len(self.clients)


def total_of(summand: Callable[[Any], StateTree], uploads: Mapping[int, Any]) -> Total:
    """Return the sums over uploads, whose summands are nested mappings of tensors.

    Raises:
        ValueError: if the summands do not have the same names.
    """
    return total_over(sorted(uploads), lambda client: summand(uploads[client]))


def total_over(
    clients: Sequence[int], summand: Callable[[int], StateTree | None], *, in_place: bool = False
) -> Total:
    """Return the sums over clients, whose summands are asked for one after the other.

    Args:
        clients: ids, sorted.
        summand: returns what a client's upload adds; None without upload.
        in_place: whether summands may be changed; else one may be part of its upload.

    Raises:
        ValueError: if the summands do not have the same names.
    """
    if not clients:
        return Total()
    if len(clients) == 1:
        sums = summand(clients[0])
        return Total() if sums is None else Total((clients[0],), sums)
    left, right = (total_over(half, summand, in_place=in_place) for half in halves(clients))
    return _joined(left, right, in_place=in_place or len(left) > 1)


def joined(clients: Sequence[int], blocks: Mapping[tuple[int, ...], Total]) -> Total:
    """Return the sums over clients from those of blocks, which `halves` has divided them into.

    Args:
        clients: ids, sorted.
        blocks: the total of each block, by its ids.
    """
    if (total := blocks.get(tuple(clients))) is not None:
        return total
    left, right = (joined(half, blocks) for half in halves(clients))
    return _joined(left, right, in_place=False)  # blocks may lie in shared memory


def halves(clients: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the two parts of at least two clients whose sums are added."""
    middle = len(clients) // 2
    return clients[:middle], clients[middle:]


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


def _joined(left: Total, right: Total, *, in_place: bool) -> Total:
    if not (left.clients and right.clients):
        return left if left.clients else right
    return Total(left.clients + right.clients, _added(left.sums, right.sums, in_place=in_place))


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
