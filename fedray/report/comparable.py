"""Which groups of runs may be compared: the same images, clients, protocol and choice of rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fedray.records import BEST
from fedray.report.runs import Group, show

PROTOCOL = (
    "rounds",
    "participation",
    "local_epochs",
    "batch_size",
    "precision",
    "drop_last",
    "finetune_epochs",
    "data.clients",
    "data.validation_fraction",
    "data.test",
    "data.augment",
    "data.evolution",
    "early_stopping",
    "join",
)
"""Keys, and beginnings of keys, that say what was asked of a method: how long and how often it
trains, and on what it is tested."""


def blocks_of(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that may be compared with each other, in their order; each in the first that fits.

    Each with each: two that have no seed in common fit a third that has another partition.
    """
    blocks: list[list[Group]] = []
    for member in groups:
        for block in blocks:
            if not any(unlike(other, member) for other in block):
                block.append(member)
                break
        else:
            blocks.append([member])
    return blocks


def unlike(one: Group, other: Group) -> list[str]:
    """Why two groups may not be compared, in words; empty when they may."""
    return [
        *_unlike_data(one, other),
        *_unlike_protocol(one.keys, other.keys),
        *_choice(one, other),
    ]


def _unlike_data(one: Group, other: Group) -> Iterable[str]:
    """What of images and clients is not the same, or is not known to be."""
    hashes = [{run.run.info.data_sha256 for run in group.runs} for group in (one, other)]
    if None in hashes[0] | hashes[1]:
        yield "images without a hash, which may be others"
        return
    if hashes[0] != hashes[1]:
        names = [group.data for group in (one, other)]
        yield "other images" + (f" ({' and '.join(names)})" if names[0] != names[1] else "")
        return
    first, second = (
        {run.seed: run.run.info.partition_sha256 for run in group.runs} for group in (one, other)
    )
    both = sorted(first.keys() & second.keys())
    seeds = [seed for seed in both if first[seed] is None or first[seed] != second[seed]]
    if seeds:
        yield f"other partitions (seed {', '.join(map(str, seeds))})"


def _unlike_protocol(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterable[str]:
    for key in dict.fromkeys((*one, *other)):
        if _is_asked(key) and one.get(key) != other.get(key):
            yield f"{key} ({show(one.get(key))} and {show(other.get(key))})"


def _choice(one: Group, other: Group) -> Iterable[str]:
    if one.select != other.select:
        yield f"{BEST[one.select]} and {BEST[other.select]}"


def why_apart(blocks: Sequence[Sequence[Group]]) -> list[str]:
    """What keeps each block from being compared with the first one."""
    first, *others = blocks
    pairs = [next(pair for pair in product(first, block) if unlike(*pair)) for block in others]
    return [
        f"not compared: {one.label} and {other.label} have {', '.join(unlike(one, other))}"
        for one, other in pairs
    ]


def methods_differ(groups: Sequence[Group]) -> list[str]:
    """Keys besides a method's own, its tuning and the protocol in which the methods differ."""
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for member in groups:
        methods.setdefault(member.method, []).append(member.keys)
    found = []
    for key in dict.fromkeys(key for member in groups for key in member.keys):
        if _is_own(key) or _is_asked(key):
            continue
        values = {name: {show(keys.get(key)) for keys in all_} for name, all_ in methods.items()}
        if len(set(map(frozenset, values.values()))) > 1:
            words = "; ".join(f"{name}: {', '.join(sorted(v))}" for name, v in values.items())
            found.append(f"methods differ in {key} ({words})")
    return found


def _is_own(key: str) -> bool:
    """Whether a key is the method's, its tuning's or its texts'; the data's hash says more."""
    own = ("algorithm", "plugins", "lr", "lr_schedule", "optimizer", "text", "data", "scale")
    return key.partition(".")[0] in own or key == "clip_grad_norm"


def _is_asked(key: str) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in PROTOCOL)
