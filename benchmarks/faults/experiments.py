"""Small experiments for faults, which together hold every kind of state that a run can hold.

Clients take part more than once, some drop out, and one client joins in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedray.config.files import merge

ROUNDS = 8
_BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "participation": 0.5,
    "join": {"clients": 1, "round": 4},
    "report": {"select": "test"},
    "faults": {"drop": 0.2},
    "data": {"clients": 5, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
}
_CLIP: dict[str, Any] = {"model": {"clip": "small"}, "data": {"samples": 60, "image_size": 32}}
_METHODS: Mapping[str, dict[str, Any]] = {
    "scaffold": {"model": {"group": "mlp"}},
    "fedmgp": _CLIP,
    "dp2fl": {**_CLIP, "data": {**_CLIP["data"], "validation_fraction": 0.2}},
    "fedtsp": {
        "model": {"group": "mlp"},
        "text": {"encoder": "minilm", "style": "handcrafted"},
    },
}
METHODS = (*_METHODS,)
"""They hold control variates, prompt groups, validation images, and prompts at the server."""


def write_experiments(folder: Path) -> dict[str, Path]:
    """Write an experiment for each method; return the files by method."""
    files = {method: folder / f"{method}.yaml" for method in METHODS}
    for method, changes in _METHODS.items():
        tree = merge({**_BASE, "algorithm": {"name": method}}, changes)
        files[method].write_text(yaml.safe_dump(tree), encoding="utf-8")
    return files
