"""Resolve an experiment from a name and `key=value` assignments, and check it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedray.config import (
    Experiment,
    MissingRoot,
    Tree,
    is_record,
    load_experiment,
    missing_roots_allowed,
    parse_assignments,
    read_experiment,
    with_read_plugins,
)
from fedray.runtime.compatibility import check_compatible
from fedray.runtime.fitted import with_measured_workers
from fedray.runtime.inputs import missing_weights


def resolve(
    name: str,
    assignments: Iterable[str] = (),
    plugins: Iterable[str] = (),
) -> Experiment:
    """Read an experiment by name or file, apply presets and `key=value` assignments, and check it.

    Args:
        name: a shipped name or a YAML file.
        assignments: texts of the form "key=value".
        plugins: files and modules in addition to those that the experiment names.

    Raises:
        UserError: if anything is invalid; the message describes the first problem.
    """
    pairs = parse_assignments(assignments)
    tree = with_read_plugins(read_experiment(name), pairs, plugins, trusted=not is_record(name))
    return from_tree(tree, [pair for pair in pairs if pair[0] != "plugins"])


def from_tree(tree: Tree, pairs: Iterable[tuple[str, Any]] = ()) -> Experiment:
    """Resolve an experiment from a tree and parsed assignments."""
    pairs = list(pairs)
    try:
        experiment = with_measured_workers(tree, pairs)
    except MissingRoot as error:
        raise MissingRoot("; ".join([str(error), *_missing_weights(tree, pairs)])) from None
    check_compatible(experiment)
    return experiment


def _missing_weights(tree: Tree, pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """Return what an experiment lacks besides its data, so that all of it is named at once."""
    with missing_roots_allowed():
        return missing_weights(load_experiment(tree, pairs))
