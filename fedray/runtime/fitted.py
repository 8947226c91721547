"""The number of workers that `fedray fit` found fastest on this machine: `workers=auto`.

The answer serves every experiment whose rounds cost the same: seeds, rates, rounds and the like may
differ. It lies in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedray.config import (
    DATA,
    IMAGES,
    PROTOCOL,
    Experiment,
    Tree,
    flatten,
    load_experiment,
    role_of,
)
from fedray.errors import UserError
from fedray.storage.files import cache_folder, write_json
from fedray.storage.json_files import read_json

AUTO = "auto"
TIMELESS = ("seed", "rounds", "eval_every")
"""Keys of these roles that change no round's cost."""


def with_measured_workers(tree: Tree, pairs: Sequence[tuple[str, Any]]) -> Experiment:
    """Load an experiment; `workers=auto` becomes the number that was measured.

    Raises:
        UserError: if nothing was measured here for such an experiment, or a value is invalid.
    """
    if {"workers": tree.get("workers"), **dict(pairs)}["workers"] != AUTO:
        return load_experiment(tree, pairs)
    experiment = load_experiment(tree, [*pairs, ("workers", 1)])
    file = _file(experiment)
    if not file.exists():
        raise UserError(
            "workers=auto: no rounds like these were measured on this machine; run `fedray fit` "
            "with the same experiment and keys, or set workers to a number"
        )
    return load_experiment(tree, [*pairs, ("workers", read_json(file))])


def remember(experiment: Experiment, workers: int) -> None:
    """Keep the fastest number of workers for experiments like this one."""
    file = _file(experiment)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, workers)


def _file(experiment: Experiment) -> Path:
    """Return the file of the answer for experiments that cost the same here."""
    values = flatten(experiment.tree())
    alike = {
        key: value
        for key, value in values.items()
        if role_of(key) in (DATA, IMAGES, PROTOCOL, None) and key not in TIMELESS
    }
    alike["algorithm"] = experiment.algorithm.name
    content = [platform.node(), os.cpu_count(), alike]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "fit" / f"{digest[:32]}.json"
