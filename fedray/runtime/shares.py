"""How the clients of an exchange are divided among workers, their calls, and passes of a test."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from fedray.core import Downlinks, halves
from fedray.core.stacked import stacks_of
from fedray.runtime.assembly import Assembly

SLACK = 1.1
"""How much longer than an even share a worker may take, so that it adds up larger blocks."""
STACKED_STEP = "client_update"
"""The client step in which clients may be stacked."""
TESTED_TOGETHER = 256
"""Most test images of a group of clients, so that several workers share a test."""
PARTS = (1, 2, 4, 8, 16)
"""Blocks per worker that are tried, until the shares are even."""


def shares_of_groups(
    groups: Sequence[Sequence[int]], seconds: Mapping[int, float], workers: int, most: int
) -> list[list[list[Sequence[int]]]]:
    """Return the calls of each worker, with at most `most` groups of clients each."""
    long = {n: sum(seconds[client] for client in group) for n, group in enumerate(groups)}
    return [
        [[groups[n] for n in share[start : start + most]] for start in range(0, len(share), most)]
        for share in longest_first(long, workers)
    ]


def shares_of_blocks(
    everyone: Sequence[int],
    seconds: Mapping[int, float],
    workers: int,
    most: int,
    least: int = 1,
) -> list[list[Sequence[int]]]:
    """Return the calls of each worker, a block each, whose uploads the worker adds up.

    A block is a whole subtree of the additions (`core.sums`). Blocks are as large as even shares
    allow, since every block is one sum that travels.

    Args:
        everyone: the clients whose uploads are added, sorted.
        seconds: how long each client that is called takes.
        workers: the number of workers.
        most: the largest number of clients in a block.
        least: clients that are stacked; a subtree of no more is not divided.
    """
    even = SLACK * sum(seconds.values()) / workers
    for parts in PARTS:
        blocks = list(_blocks(everyone, seconds, even / parts, most, least))
        long = {n: sum(seconds[client] for client in block) for n, block in enumerate(blocks)}
        shares = longest_first(long, workers)
        if max(sum(long[number] for number in share) for share in shares) <= even:
            break
    return [[blocks[number] for number in sorted(share)] for share in shares]


def longest_first(seconds: Mapping[int, float], workers: int) -> list[list[int]]:
    """Return the items of each worker: the longest first, to the worker with the least to do."""
    loads = [0.0] * workers
    shares: list[list[int]] = [[] for _ in loads]
    for item in sorted(seconds, key=lambda each: (-seconds[each], each)):
        least = loads.index(min(loads))
        shares[least].append(item)
        loads[least] += seconds[item]
    return shares


def is_stacked(assembly: Assembly, name: str) -> bool:
    """Return True if the clients of a step are trained together."""
    return assembly.experiment.stacked > 1 and name == STACKED_STEP


def groups_of_step(assembly: Assembly, name: str, clients: Collection[int]) -> list[Sequence[int]]:
    """Return the clients of a step in groups that are trained together, or each by itself."""
    if not is_stacked(assembly, name):
        return [(client,) for client in clients]
    return [*stacks_of(sorted(clients), assembly.experiment.stacked)]


def groups_of_test(
    assembly: Assembly, name: str, round_: int, down: Downlinks
) -> list[Sequence[int]]:
    """Return the clients of a test in groups that share a model, each to be tested in one pass.

    A group has the same architecture and download, and at most `TESTED_TOGETHER` test images; of
    any number where there are shared evaluation sets, on which it is tested once. Groups depend on
    nothing but the arguments, so that a score is the same in every executor.
    """
    everyone = sorted(down)
    if name != "evaluate" or not assembly.algorithm.is_tested_together:
        return [(client,) for client in everyone]
    data, architectures = assembly.data.at(round_), assembly.models.architectures
    most = math.inf if data.eval_sets else TESTED_TOGETHER
    groups: list[list[int]] = []
    last: dict[tuple[str, int], tuple[list[int], int]] = {}
    for client in everyone:
        key, images = (architectures[client], id(down[client])), len(data.test[client])
        group, size = last.get(key, ([], 0))
        if not group or size + images > most:
            group, size = [], 0
            groups.append(group)
        group.append(client)
        last[key] = group, size + images
    return [*groups]


def _blocks(
    everyone: Sequence[int], seconds: Mapping[int, float], longest: float, most: int, least: int
) -> Iterator[Sequence[int]]:
    """Yield the largest blocks of called clients that take at most `longest`, or have `least`."""
    asked: Collection[int] = [client for client in everyone if client in seconds]
    is_small = len(asked) <= most and sum(seconds[client] for client in asked) <= longest
    if len(asked) == len(everyone) and (is_small or len(everyone) <= least):
        yield everyone
    elif asked:
        for half in halves(everyone):
            yield from _blocks(half, seconds, longest, most, least)
