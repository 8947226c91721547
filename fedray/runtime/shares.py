"""Division of an exchange's clients among workers, and the passes of a test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from fedray.core import Downlinks, is_tested_together
from fedray.core.sums import halves, subtrees
from fedray.evaluation.answers import Counts
from fedray.runtime.assembly import Assembly

SLACK = 1.1
"""Longest time of a worker relative to an even share; a larger value allows larger blocks."""
STACKED_STEP = "client_update"
"""The client step in which clients may be stacked."""
TESTED_TOGETHER = 256
"""Most test images of a group of clients; bounded so that several workers share a test."""
SUMMED_TOGETHER = 2**18
"""Most numbers of the uploads that are summed together."""
HELD_TOGETHER = 2**24
"""Most numbers of the states of such clients, which a process holds until their sum."""
ON_DEVICE = 2**26
"""Both on an accelerator, where a copy takes as long for few numbers as for many."""
PARTS = (1, 2, 4, 8, 16)
"""Numbers of blocks per worker that are tried in turn, until the shares are even."""


def shares_of_groups(
    groups: Sequence[Sequence[int]], seconds: Mapping[int, float], workers: int
) -> list[list[Sequence[int]]]:
    """Return the groups of each worker: the longest first, to the worker with the least load."""
    durations = [sum(seconds[client] for client in group) for group in groups]
    shares, loads = [list[Sequence[int]]() for _ in range(workers)], [0.0] * workers
    for number in sorted(range(len(groups)), key=lambda number: (-durations[number], number)):
        least = loads.index(min(loads))
        shares[least].append(groups[number])
        loads[least] += durations[number]
    return shares


def shares_of_blocks(
    clients: Sequence[int], seconds: Mapping[int, float], workers: int, least: int = 1
) -> list[list[Sequence[int]]]:
    """Return the blocks of each worker, whose uploads the worker sums.

    A block is a whole subtree of the additions (`core.sums`). Blocks are as large as even shares
    allow, because every block is one sum to transfer.

    Args:
        clients: the clients, sorted.
        seconds: the expected time of each client.
        workers: the number of workers.
        least: the number of stacked clients; a subtree of at most this size is not divided.
    """
    even = SLACK * sum(seconds.values()) / workers
    for parts in PARTS:
        blocks = list(_blocks(clients, seconds, even / parts, least))
        shares = shares_of_groups(blocks, seconds, workers)
        if max(sum(seconds[client] for client in chain(*share)) for share in shares) <= even:
            break
    return [sorted(share, key=lambda block: block[0]) for share in shares]


def is_stacked(assembly: Assembly, name: str) -> bool:
    """Return True if the clients of a step are trained in stacks."""
    return assembly.experiment.stacked > 1 and name == STACKED_STEP


def groups_of_step(
    assembly: Assembly, name: str, down: Downlinks, *, at_once: bool = False
) -> list[Sequence[int]]:
    """Return the clients of a step in groups that are run together.

    A group is a stack, or clients whose small uploads are checked and summed together: then it is a
    subtree of the additions (`core.sums`). Other clients are alone. An upload is taken to be as
    large as a download; copying a large one costs more than it saves. A state is taken to be as
    large as a model.
    """
    size, is_gpu = 1, assembly.experiment.gpus > 0
    sent = next((payload for payload in down.values() if payload is not None), None)
    if is_stacked(assembly, name):
        size = assembly.experiment.stacked
    elif at_once and (sent is not None or is_gpu):
        numbers = 0 if sent is None else sum(block.numel() for block in sent.blocks())
        most, held = (ON_DEVICE, ON_DEVICE) if is_gpu else (SUMMED_TOGETHER, HELD_TOGETHER)
        size = most // max(1, numbers)
        size = min(size, held // assembly.model_numbers) if size > 1 else 1
    return [*subtrees(sorted(down), size)] if size > 1 else [(client,) for client in down]


def groups_of_test(
    assembly: Assembly, name: str, round_: int, down: Downlinks
) -> list[Sequence[int]]:
    """Return the clients of a test in groups that share a model; a group is tested in one pass.

    The clients of a group have the same architecture and download, and at most `TESTED_TOGETHER`
    test images. With shared evaluation sets, a group has no such limit, because the sets are
    tested once per group. Groups depend only on the arguments, so that scores are the same in
    every executor.
    """
    everyone = sorted(down)
    if name != "evaluate" or not is_tested_together(assembly.algorithm):
        return [(client,) for client in everyone]
    data, architectures = assembly.data.at(round_), assembly.models.architectures
    most = math.inf if data.eval_sets else TESTED_TOGETHER
    payloads, sizes = map(id, map(down.__getitem__, everyone)), [*map(len, data.test)]
    models = [*zip([architectures[client] for client in everyone], payloads, strict=True)]
    groups: list[Sequence[int]] = []
    for shared in dict.fromkeys(models):
        clients = [c for c, model in zip(everyone, models, strict=True) if model == shared]
        groups += _passes(clients, sizes, most)
    return groups


def by_client(groups: Iterable[Sequence[int]], counts: Sequence[Counts]) -> Counts:
    """Return the counts of all clients sorted by client, from those of groups one after another."""
    clients = np.fromiter(chain.from_iterable(groups), np.int64)
    return np.concatenate(counts)[np.argsort(clients)]


def _passes(clients: Sequence[int], sizes: Sequence[int], most: float) -> Iterator[Sequence[int]]:
    """Yield clients one after the other in groups that have at most `most` images."""
    first = images = 0
    for position, client in enumerate(clients):
        if position > first and images + sizes[client] > most:
            yield clients[first:position]
            first, images = position, 0
        images += sizes[client]
    yield clients[first:]


def _blocks(
    clients: Sequence[int], seconds: Mapping[int, float], longest: float, least: int
) -> Iterator[Sequence[int]]:
    """Yield the largest blocks that take at most `longest`, or have `least` clients."""
    if len(clients) <= least or sum(seconds[client] for client in clients) <= longest:
        yield clients
    else:
        for half in halves(clients):
            yield from _blocks(half, seconds, longest, least)
