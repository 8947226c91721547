"""Sums over a round's uploads, equal bit for bit on every executor.

Clients are sorted, and their uploads are added pairwise: the sum of the first half plus the sum of
the second half, recursively. A process that ran all clients of a subtree adds up the subtree, and
the server joins the results. The additions are therefore the same for any division of the clients
among workers. Pairwise addition also loses less precision than sequential addition.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedray.base.flat import map_blocks
from fedray.base.trees import StateTree, is_tree

U = TypeVar("U")
TOGETHER = 4
"""Most uploads that the server stacks at a time, which may be large models."""


@dataclass(frozen=True)
class Total:
    """The sums over the uploads of one exchange.

    Attributes:
        clients: ids of the clients that uploaded, sorted.
        sums: the sums by the names of the fields that have one (`combine`), and "weight", the sum
            of the clients' weights; {} if no client uploaded.
    """

    clients: tuple[int, ...] = ()
    sums: StateTree = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return the sum of this name."""
        return self.sums[name]

    def __len__(self) -> int:
        return len(self.clients)


def total_of(uploads: Mapping[int, U], terms: Callable[[Sequence[U]], StateTree]) -> Total:
    """Return the sums over uploads by client; `terms` returns a row for each of several uploads."""
    sums = Sums(len(uploads))
    for clients in subtrees(sorted(uploads), TOGETHER):
        sums.add_rows(clients, terms([uploads[client] for client in clients]))
    return sums.total


class Sums:
    """Adds up terms of clients, in their order; holds the subtrees that are complete.

    Args:
        count: the number of clients.

    Attributes:
        total: the sums over all clients, once all are added.
    """

    def __init__(self, count: int) -> None:
        self.total = Total()
        self._parts: list[tuple[Total, int]] = []
        self._sum = self._subtree(count)

    def add(self, part: Total, size: int = 1) -> None:
        """Add the sums of the next subtree of `size` clients, with or without upload.

        Raises:
            ValueError: if the terms do not have the same names and shapes.
        """
        self._parts.append((part, size))
        try:
            next(self._sum)
        except StopIteration as end:
            self.total = end.value

    def add_rows(self, clients: Sequence[int], rows: StateTree) -> None:
        """Add the terms of all clients of the next subtree, a row each, in a few operations."""
        self.add(Total(tuple(clients), map_blocks(_sum_of_rows, rows)), len(clients))

    def _subtree(self, count: int) -> Generator[None, None, Total]:
        """Return the sums over the next `count` clients; yield to wait for a part."""
        if not self._parts:
            yield
        if self._parts[0][1] == count:
            return self._parts.pop()[0]
        first = yield from self._subtree(count // 2)
        second = yield from self._subtree(count - count // 2)
        if not (first and second):
            return first or second
        return Total(first.clients + second.clients, map_blocks(_add, first.sums, second.sums))


def halves(clients: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the two halves of at least two clients."""
    middle = len(clients) // 2
    return clients[:middle], clients[middle:]


def subtrees(clients: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Divide sorted clients into the largest subtrees of the additions with at most `limit`.

    The clients are all of an exchange, or those of a subtree at least as large as the limit.
    """
    if len(clients) > limit:
        for half in halves(clients):
            yield from subtrees(half, limit)
    elif clients:
        yield clients


# --- what uploads add ----------------------------------------------------------------------------


def combined_rows(method: Any, uploads: Sequence[Any]) -> StateTree:
    """Return what uploads of one type add to each sum, a row each, as their fields declare.

    Uploads without a field `samples` have the weight 1.

    Raises:
        TypeError: if a field has no sum.
    """
    fields, weights = uploads[0].fields, torch.ones(len(uploads), dtype=torch.double)
    if "samples" in fields:
        weights = torch.tensor([*map(method.weight, uploads)], dtype=torch.double)
    rows: dict[str, Any] = {"weight": weights}
    for name, declared in fields.items():
        if callable(combine := declared.combine):
            rows[name] = doubled([combine(method, upload) for upload in uploads], name)
        elif combine:
            values = [getattr(upload, name) for upload in uploads]
            if declared.number:
                values = [*torch.tensor(values, dtype=torch.double)]
            factors = weights if combine == "mean" else None
            rows[name] = doubled(values, name, factors, counters=declared.counters)
    return rows


def doubled(
    values: Sequence[Any], name: str, factors: Tensor | None = None, *, counters: bool = False
) -> Any:
    """Return values as rows in double precision, times factors if there are any.

    Double precision keeps sums exact to the last digit of a float32.

    Args:
        values: a tensor or a tree of tensors of each client.
        name: the name of the field.
        factors: a factor of each client.
        counters: whether integers are counters, which stay integers; their sum is the maximum.
    """

    def stacked(*same: Tensor) -> Tensor:
        rows = torch.stack(same)
        if rows.is_floating_point():
            rows = rows.double()
            return rows if factors is None else rows.mul_(factors.view(-1, *[1] * (rows.dim() - 1)))
        if counters:
            return rows
        raise TypeError(
            f"'{name}' has no sum: combine adds {rows.dtype}, expected floating-point numbers (of "
            "integers, only counters of a model are combined)"
        )

    return map_blocks(stacked, *values)


def stack_trees(trees: Sequence[Any]) -> Any:
    """Return a tree whose tensors stack those of several trees as rows."""
    return map_blocks(lambda *same: torch.stack(same), *trees)


def mean_of(sums: Any, weight: float | Tensor, like: Any) -> Any:
    """Return the mean, sums of weighed tensors divided by the sum of weights.

    Args:
        sums: the sum of each name, or of one tensor; integers, which are counters, are not divided.
        weight: sum_k p_k.
        like: a tensor or tensors that determine the order and the dtypes of the result.
    """

    def mean(tensor: Tensor, total: Tensor) -> Tensor:
        return (total / weight).to(tensor.dtype) if tensor.is_floating_point() else total

    if is_tree(sums) and sums.keys() != like.keys():
        like = {name: tensor for name, tensor in like.items() if name in sums}
        sums = {name: sums[name] for name in like}
    return map_blocks(mean, like, sums)


# --- operations on rows --------------------------------------------------------------------------


def _add(first: Tensor, second: Tensor) -> Tensor:
    if not first.is_floating_point():
        return torch.maximum(first, second)
    if first.shape != second.shape:  # which torch might repeat
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        raise ValueError(f"uploads of the shapes {shapes} have no sum")
    return first + second


def _sum_of_rows(rows: Tensor) -> Tensor:
    return _pairwise(rows, 0) if rows.is_floating_point() else rows.amax(0)


def _pairwise(rows: Tensor, axis: int) -> Tensor:
    """Add up rows along an axis in the order of `Sums`; equal halves are computed together."""
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
