"""Resolve an experiment from a name and `key=value` assignments, and check it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedray.base.errors import UserError, warn_once
from fedray.config import (
    EXPERIMENTS,
    Experiment,
    Tree,
    flatten,
    is_below,
    is_record,
    keys_without_effect,
    load_experiment,
    override,
    parse_assignments,
    read_chain,
    read_experiment,
    with_read_plugins,
)
from fedray.runtime.compatibility import check_compatible


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
    tree = with_read_plugins(read_experiment(name), pairs, plugins, named=not is_record(name))
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    experiment = from_tree(tree, pairs, given=given_keys(pairs))
    name_without_effect(experiment, keys_of_user(name))
    return experiment


def given_keys(pairs: Iterable[tuple[str, Any]]) -> set[str]:
    """Return the dotted keys of assignments; a null, which switches a key off, is none."""
    return {key for key, value in flatten(override({}, pairs)).items() if value is not None}


def keys_of_user(base: str | Path | Mapping[str, Any]) -> Collection[str]:
    """Return the dotted keys that the user's own files or a mapping set.

    A complete configuration, such as a run's, has none, because it also states all defaults.
    """
    if isinstance(base, Mapping):
        is_complete = Experiment.model_fields.keys() - {"plugins"} <= base.keys()
        return () if is_complete else flatten(base).keys()
    files = () if is_record(base) else read_chain(str(base))
    own = (file.tree for file in files if not file.path.is_relative_to(EXPERIMENTS))
    return {key for tree in own for key in flatten(tree)}


def from_tree(
    tree: Tree, pairs: Iterable[tuple[str, Any]] = (), given: Collection[str] = ()
) -> Experiment:
    """Resolve an experiment from a tree and parsed assignments.

    Args:
        tree: plain data, as returned by `read_experiment`.
        pairs: dotted keys and values, as returned by `parse_assignments`.
        given: dotted keys that the user gave for this experiment, see `given_keys`; those that
            nothing reads are refused, or named if another key switches them off.
    """
    experiment = load_experiment(tree, pairs)
    check_compatible(experiment)
    name_without_effect(experiment, given, refuses=True)
    return experiment


def name_without_effect(
    experiment: Experiment, keys: Collection[str], *, refuses: bool = False
) -> None:
    """Log the keys that nothing reads, with the reasons, once per process.

    Raises:
        UserError: with `refuses`, if it is no other key that switches one off.
    """
    for key, cause in keys_without_effect(experiment).items() if keys else ():
        for one in sorted(one for one in keys if is_below(one, [key])):
            remark = f"{one.removesuffix('.name')} has no effect: {cause.reason}"
            if refuses and cause.is_refused:
                raise UserError(f"{remark}; remove it")
            warn_once(remark)
