"""From a name and `key=value` words to an experiment that can run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedray.config import (
    Experiment,
    Tree,
    load_experiment,
    parse_assignments,
    read_experiment,
)
from fedray.runtime.compatibility import check


def resolve(name: str, assignments: Iterable[str] = ()) -> Experiment:
    """Read an experiment by name or file, lay presets and `key=value` assignments on it, check it.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    return from_tree(read_experiment(name), parse_assignments(assignments))


def from_tree(tree: Tree, pairs: Iterable[tuple[str, Any]] = ()) -> Experiment:
    """Like `resolve`, from a tree and parsed assignments.

    Raises:
        UserError: as `resolve`.
    """
    experiment = load_experiment(tree, pairs)
    check(experiment)
    return experiment
