"""A small experiment with one client that misbehaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VICTIM, ROUND = 1, 2
"""The client that misbehaves, and when."""
TREE: Mapping[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "eval_every": 2,
    "data": {"clients": 4, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"group": "mlp", "feature_dim": 16},
    "text": {"encoder": {"name": "random"}, "style": "handcrafted"},
}
