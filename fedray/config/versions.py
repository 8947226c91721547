"""Versions of the package's entries that an experiment uses: a part of its identity.

What determines a number is in the identity of a run: values, files, the code of plug-ins by its
hash, the package's own code by the `version` of each entry, and the code of entries that a script
or a notebook registers by its `fingerprint`. Version 1 is left out, so that a new entry, or a
raised one, changes the identity only of the experiments that use it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedray.base.errors import UserError
from fedray.config.effects import is_below
from fedray.config.input_files import all_values
from fedray.config.registry import registered_in_scripts, registry, version_of
from fedray.config.schema import Component, Frozen, Tree


def raised_versions(experiment: Frozen, group: str, unread: Collection[str] = ()) -> Tree:
    """Return the versions above 1 of the entries that a resolved experiment uses.

    Metrics of scripts and notebooks are among them, since every run measures all metrics.

    Args:
        experiment: the experiment.
        group: its `model.group`.
        unread: keys that nothing reads, whose entries do not count.

    Returns:
        The versions by kind and name, for example `{"architecture": {"googlenet": 2}}`.
    """
    raised: Tree = {}
    metrics = [("metric", metric) for metric in registered_in_scripts("metric")]
    for kind, entry in (*entries_of(experiment, group, unread), *metrics):
        version = version_of(entry)
        if version != 1:
            raised.setdefault(kind, {})[entry.name] = version
    return raised


def version_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the entries whose versions differ between two records of experiments.

    Args:
        before: `Experiment.record` of the first run; entries that are not listed have version 1.
        after: that of the second run.

    Returns:
        Texts such as "architecture googlenet: version 1, now 2".
    """
    was, now = (
        {
            f"{kind} {name}": version
            for kind, entries in of_kind.items()
            for name, version in entries.items()
        }
        for of_kind in (tree.get("versions", {}) for tree in (before, after))
    )
    return [
        f"{key}: version {was.get(key, 1)}, now {now.get(key, 1)}"
        for key in sorted({*was, *now})
        if was.get(key, 1) != now.get(key, 1)
    ]


def entries_of(
    experiment: Frozen, group: str, unread: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield kind and entry of everything that a resolved experiment chooses by name.

    These are its components and those inside them, and a model group with its architectures.

    Args:
        experiment: the experiment.
        group: its `model.group`.
        unread: keys that nothing reads, whose entries are left out.
    """
    for key, value in all_values(experiment):
        if isinstance(value, Component) and not is_below(key, unread):
            yield value.kind, registry(value.kind).get(value.name)
    if is_below("model.group", unread):
        return
    groups, architectures = registry("model group"), registry("architecture")
    members = (group,)
    if group in groups.names():
        yield "model group", groups.get(group)
        members = groups.get(group).members
    for name in members:
        try:
            yield "architecture", architectures.get(name)
        except UserError:  # reported when the models are built
            continue
