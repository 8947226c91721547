"""Recorded numbers of the originals, which tests hold fedray to without any checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.originals.federation import Method, State, Tensors

FOLDER = Path(__file__).parents[2] / "tests" / "originals"
ENTRIES = 10


def numbers(model: Tensors) -> dict[str, list[float]]:
    """Return of each group of tensors its count, norm, sum, and ten entries spread over it.

    A group is what has the first part of a name in common: extractor, head, auxiliary, ...
    """
    groups: dict[str, list[Tensor]] = {}
    for name, tensor in model.items():
        groups.setdefault(name.split(".")[0], []).append(tensor.detach().double().flatten())
    flat = {group: torch.cat(parts) for group, parts in groups.items()}
    return {
        group: [len(all_), float(all_.norm()), float(all_.sum()), *_spread(all_)]
        for group, all_ in flat.items()
    }


def _spread(values: Tensor) -> list[float]:
    positions = torch.linspace(0, len(values) - 1, ENTRIES).round().long()
    return values[positions].tolist()


def record(states: Sequence[State]) -> list[dict[str, Any]]:
    """Return the numbers after each round but round 0, which is fedray's own."""
    return [
        {"accuracies": list(s.accuracies), "models": [numbers(model) for model in s.models]}
        for s in states[1:]
    ]


def distance(
    numbers: Mapping[str, Sequence[float]], recorded: Mapping[str, Sequence[float]]
) -> float:
    """Return the greatest difference of entries, norms and sums; the last by the root of the count.

    Tensors of n entries that each differ by at most e have norms and, if the differences are
    independent, sums that differ by about e times the root of n.
    """
    differences = [0.0]
    for group, (count, *mine) in numbers.items():
        assert count == recorded[group][0], f"{group} has {count} entries"
        scales = [count**0.5, count**0.5, *[1.0] * ENTRIES]
        for a, b, scale in zip(mine, recorded[group][1:], scales, strict=True):
            differences.append(abs(a - b) / scale)
    return float(np.max(differences))  # NaN if one is NaN, unlike Python's max


def write(
    name: str,
    repository: str,
    commit: str,
    method: Method,
    found: Mapping[str, tuple[list[dict[str, Any]], list[float], list[float]]],
) -> None:
    """Write the numbers of an original, rounded to eight digits."""
    FOLDER.mkdir(exist_ok=True)
    content = {
        "method": name,
        "repository": repository,
        "commit": commit,
        "switches": list(method.switches),
        "values": list(method.values),
        "changes": list(method.changes),
        "difference": {s: float(f"{np.max(d):.1e}") for s, (_, d, _) in found.items()},
        "noise": {s: float(f"{np.max(n):.1e}") for s, (_, _, n) in found.items()},
        "rounds": {setting: rounds for setting, (rounds, _, _) in found.items()},
    }
    rounded = json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.8g}"))
    path = FOLDER / f"{name}_{repository.split('/')[1].lower()}.json"
    path.write_text(json.dumps(rounded, separators=(",", ":")) + "\n", encoding="utf-8")
