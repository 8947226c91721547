"""The plug-ins of an experiment, read and used before its other keys are resolved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedray.base.errors import UserError
from fedray.config.experiment import Experiment
from fedray.config.files import listed
from fedray.config.plugins import Plugin, allow, installed_plugin, named_plugins, read_plugin, use
from fedray.config.registry import installed_points, registered_by, registry
from fedray.config.schema import Frozen, Tree, validate
from fedray.config.versions import entries_of
from fedray.storage.run_folder import RUN

KEY = "plugins"


class _Plugins(Frozen):
    plugins: tuple[Plugin, ...] = ()
    """The plug-ins, with their texts."""


def read_plugins(values: Iterable[Any]) -> tuple[Plugin, ...]:
    """Read plug-ins given by file or module, and validate plug-ins given with their text.

    Raises:
        UserError: if a plug-in cannot be read, or two have the same name.
    """
    values = list(values)
    texts = {KEY: [value for value in values if not isinstance(value, str)]}
    plugins = dict[str, Plugin]()
    read = [read_plugin(value) for value in values if isinstance(value, str)]
    for plugin in (*validate(_Plugins, texts).plugins, *read):
        other = plugins.setdefault(plugin.name, plugin)
        if (other.module, other.sha256) != (plugin.module, plugin.sha256):
            raise UserError(
                f"two plug-ins are called '{plugin.name}', in {other.folder} and in "
                f"{plugin.folder}; rename one of them"
            )
    return tuple(plugins.values())


def is_record(experiment: Any) -> bool:
    """Return True for the run.json of a run, whose plug-ins the user has not named himself."""
    return isinstance(experiment, str | Path) and Path(experiment).name == RUN


def with_read_plugins(
    tree: Tree, pairs: Iterable[tuple[str, Any]], more: Iterable[str] = (), *, named: bool = True
) -> Tree:
    """Return an experiment's tree with the texts of its plug-ins.

    The user has named the files of `pairs` and `more`, so they may run.

    Args:
        tree: plain data; its plug-ins may be files, modules or texts.
        pairs: overrides; a value of the key `plugins` other than None replaces the tree's plug-ins.
        more: further plug-ins, which replace those of the same name.
        named: whether files that the tree names may run, too. Texts in the tree may not.
    """
    chosen = [value for key, value in pairs if key == KEY and value is not None]
    values = listed({KEY: chosen[-1]} if chosen else tree)
    before, added = read_plugins(values), named_plugins(more)
    if named or chosen:
        named_plugins(value for value in values if isinstance(value, str))
    replaced = {plugin.module for plugin in added}
    kept = [plugin for plugin in before if plugin.module not in replaced]
    plugins = [vars(plugin) for plugin in (*kept, *added)]
    return {**tree, KEY: plugins} if plugins or KEY in tree else tree


def with_plugins(
    tree: Tree, pairs: Iterable[tuple[str, Any]], more: Iterable[str] = (), *, named: bool = True
) -> Tree:
    """Read an experiment's plug-ins as `with_read_plugins` does, and use these plug-ins alone.

    Raises:
        UserError: as `read_plugins`; also if a plug-in cannot be imported or registers a name that
            is taken.
    """
    tree = with_read_plugins(tree, pairs, more, named=named)
    use(read_plugins(tree.get(KEY, ())), check=True)
    return tree


def with_used_plugins(experiment: Experiment) -> Experiment:
    """Return an experiment without the plug-ins that its results do not depend on.

    A plug-in is used if it registers an entry that the experiment names, or a metric, since every
    run measures all metrics, or nothing, since its import may have effects.
    """
    used = list[Plugin]()
    named = {(kind, entry.name) for kind, entry in entries_of(experiment, experiment.model.group)}
    for plugin in experiment.plugins:
        registered = registered_by(plugin.key)
        names = {(kind, name) for kind, of_kind in registered.items() for name in of_kind}
        if names & named or "metric" in registered or not names:
            used.append(plugin)
    return experiment.model_copy(update={KEY: tuple(used)})


def received_experiment(text: str) -> Experiment:
    """Return an experiment that another process has sent as JSON, and use its plug-ins."""
    plugins = read_plugins(json.loads(text).get(KEY, ()))
    allow(plugins)
    use(plugins)
    return Experiment.model_validate_json(text)


def completed_by_installed(experiment: Experiment) -> Experiment:
    """Return an experiment with the installed plug-ins whose entries it names."""
    tops = {point.module.partition(".")[0] for point in installed_points()}
    missing = tops - {plugin.name for plugin in experiment.plugins}
    if not missing:
        return experiment
    entries = entries_of(experiment, experiment.model.group)
    homes = [registry(kind).home(entry.name) for kind, entry in entries]
    added = {home.partition(".")[0]: home for home in homes if home.partition(".")[0] in missing}
    plugins = [installed_plugin(home) for _, home in sorted(added.items())]
    return experiment.model_copy(update={KEY: (*experiment.plugins, *plugins)})
