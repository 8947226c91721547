"""Sums over a round's uploads, equal bit for bit on every executor.

Clients are sorted, and their uploads are added pairwise: the sum of the first half plus the sum of
the second half, recursively. A process that ran all clients of a subtree adds up the subtree, and
the server joins the results. The additions are therefore the same for any division of the clients
among workers. Pairwise addition also loses less precision than sequential addition.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedray.core.payload import Payload
from fedray.flat import Flat
from fedray.trees import StateTree, Tensors, is_tree, leaves

Summand: TypeAlias = Callable[[Any], StateTree]
"""Returns the terms that an upload adds to each sum."""


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
        ValueError: if the terms do not have the same names and shapes.
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
        """Add the sums of the next subtree, and complete the subtrees that end with it.

        Args:
            part: the sums; without clients if none of them uploaded.
            size: the subtree's number of clients, with or without upload.

        Raises:
            ValueError: if the terms do not have the same names and shapes.
        """
        self._parts.append((part, size))
        try:
            next(self._sum)
        except StopIteration as end:
            self.total = end.value

    def add_rows(self, clients: Sequence[int], rows: StateTree) -> None:
        """Add the terms of all clients of the next subtree, in a few operations.

        Args:
            clients: their ids, sorted.
            rows: their terms, a row each, as `stack_trees` returns them.
        """
        sums = _combined(lambda same: _sum_of_rows(*same), [rows])
        self.add(Total(tuple(clients), sums), len(clients))

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
        return Total(first.clients + second.clients, _combined(_add, [first.sums, second.sums]))


def check_terms(terms: StateTree, upload: Any) -> StateTree:
    """Return the terms of an upload; raise a TypeError for one that has no sum.

    A term is a tensor of floating-point numbers, or a counter: an integer or boolean tensor of the
    upload in a mapping that is declared to hold a model's counters.
    """
    for path, term in leaves({n: t for n, t in terms.items() if not _is_floating(t)}):
        if not (_is_floating(term) or _is_counter(term, upload)):
            kind = term.dtype if isinstance(term, Tensor) else f"a {type(term).__name__}"
            raise TypeError(
                f"summand returned {kind} as '{'.'.join(path)}', expected a tensor of "
                "floating-point numbers (of integers, only counters of a model have a sum)"
            )
    return terms


def _is_floating(term: Any) -> bool:
    blocks = term.vectors if type(term) is Flat else (term,)
    return all([isinstance(b, Tensor) and b.is_floating_point() for b in blocks])  # noqa: C419


def _is_counter(term: Any, upload: Any) -> bool:
    declared = upload.declared.items() if isinstance(upload, Payload) else ()
    fields = {name: getattr(upload, name) for name, field in declared if field.counters}
    counters = [value for path, value in leaves(fields) if len(path) > 1]
    addresses = [counter.data_ptr() for counter in counters]
    return isinstance(term, Tensor) and term.data_ptr() in addresses


def stack_trees(trees: Sequence[StateTree]) -> StateTree:
    """Return a tree whose tensors stack those of several trees as rows.

    Raises:
        ValueError: if the trees do not have the same names.
        RuntimeError: if they do not have the same shapes.
    """
    return _combined(torch.stack, trees)


def _combined(function: Callable[[Any], Tensor], trees: Sequence[StateTree]) -> StateTree:
    """Return a tree with the results of a function of the tensors in the same place of all trees.

    The function gets whole vectors if all are of one layout.
    """
    first = trees[0]
    if not any(trees):
        return {}
    if type(first) is Flat:
        flats = [t.vectors for t in trees if type(t) is Flat and t.layout is first.layout]
        if len(flats) == len(trees):
            return Flat(first.layout, [*map(function, zip(*flats, strict=True))])
    for other in trees[1:]:
        for name in sorted(first.keys() ^ other.keys())[:1]:
            raise ValueError(f"only some of the uploads have '{name}', so they have no sum")
    results: dict[str, Any] = {}
    for name, value in first.items():
        values = [tree[name] for tree in trees]
        results[name] = _combined(function, values) if is_tree(value) else function(values)
    return results


def _add(pair: Sequence[Tensor]) -> Tensor:
    first, second = pair
    if not first.is_floating_point():
        return torch.maximum(first, second)
    if first.shape != second.shape:
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

    def weigh(same: list[Tensor]) -> Tensor:
        rows = torch.stack(same)
        if not rows.is_floating_point():
            return rows
        return rows.double().mul_(factors.view(-1, *[1] * (rows.dim() - 1)))

    return _combined(weigh, tensors)


def mean_of(
    sums: Mapping[str, Tensor], weight: float | Tensor, like: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Return the mean, sums of `weighed` tensors divided by the sum of weights.

    Args:
        sums: the sum of each name; integer tensors, which are counters, are not divided.
        weight: sum_k p_k.
        like: tensors that determine the order and the dtypes of the result.
    """

    def mean(pair: Sequence[Tensor]) -> Tensor:
        tensor, total = pair
        return (total / weight).to(tensor.dtype) if tensor.is_floating_point() else total

    if sums.keys() != like.keys():
        like = {name: tensor for name, tensor in like.items() if name in sums}
        sums = {name: sums[name] for name in like}
    return _combined(mean, [like, sums])
