"""The plug-ins of an experiment: read and used before its other keys are resolved, recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from fedray.config.experiment import Experiment
from fedray.config.files import COMPONENTS, listed
from fedray.config.schema import Frozen, Tree, validate
from fedray.plugins import Plugin, installed_plugin, needed, read_plugin, trust, use, with_siblings
from fedray.registry import installed_points, registered_by, registry

KEY = "plugins"


class _Plugins(Frozen):
    plugins: tuple[Plugin, ...] = ()
    """With their texts."""


def read_plugins(given: Iterable[Any]) -> tuple[Plugin, ...]:
    """Read the plug-ins that are named, and validate those that are given with their text.

    Raises:
        UserError: if one cannot be read, or two have the same name.
    """
    given = list(given)
    named = [read_plugin(each) for each in given if isinstance(each, str)]
    texts = {KEY: [each for each in given if not isinstance(each, str)]}
    return tuple(with_siblings(named, validate(_Plugins, texts).plugins))


def named_plugins(given: Iterable[str]) -> tuple[Plugin, ...]:
    """Read plug-ins that the user has named, and let them run without a question."""
    plugins = read_plugins(given)
    trust(plugins)
    return plugins


def with_read_plugins(
    tree: Tree, pairs: Iterable[tuple[str, Any]], more: Iterable[str] = (), *, trusted: bool = True
) -> Tree:
    """Return an experiment's tree with the texts of its plug-ins.

    The files that `pairs` and `more` name may run: the user has named them.

    Args:
        tree: plain data; its own plug-ins may be names.
        pairs: overrides; those of the key `plugins` replace the tree's, unless None.
        more: further plug-ins, which replace those of the same name.
        trusted: whether the files that the tree names may run without a question, too. Texts that
            are part of the tree are never trusted by this.
    """
    chosen = [value for key, value in pairs if key == KEY and value is not None]
    given = listed({KEY: chosen[-1]} if chosen else tree)
    before, added = read_plugins(given), named_plugins(more)
    if trusted or chosen:
        named_plugins(each for each in given if isinstance(each, str))
    kept = [plugin for plugin in before if plugin.module not in {each.module for each in added}]
    plugins = [vars(plugin) for plugin in (*kept, *added)]
    return {**tree, KEY: plugins} if plugins or KEY in tree else tree


def with_plugins(
    tree: Tree, pairs: Iterable[tuple[str, Any]], more: Iterable[str] = (), *, trusted: bool = True
) -> Tree:
    """Read an experiment's plug-ins as `with_read_plugins`, and let this process use only these.

    Raises:
        UserError: as `read_plugins`, and if one does not import or registers a name that is taken.
    """
    tree = with_read_plugins(tree, pairs, more, trusted=trusted)
    use(read_plugins(tree.get(KEY, ())), check=True)
    return tree


def with_used_plugins(experiment: Experiment) -> Experiment:
    """Return an experiment without the plug-ins that its numbers do not depend on.

    Used is a plug-in that registers something that the experiment names, or a metric, which every
    run measures; or one that registers nothing and that no other imports: it acts by being
    imported. What these import is used, too.
    """
    plugins = experiment.plugins
    named = _texts(experiment.model_dump(mode="json", exclude={KEY, "name"}))
    roots = [plugin for plugin in plugins if _is_used(plugin, named, plugins)]
    return experiment.model_copy(update={KEY: tuple(needed(roots, plugins))})


def _is_used(plugin: Plugin, named: Collection[str], plugins: Sequence[Plugin]) -> bool:
    registered = registered_by(plugin.key)
    if not registered:
        return not any(plugin in needed([other], plugins) for other in plugins if other != plugin)
    return "metric" in registered or any(set(names) & set(named) for names in registered.values())


def _texts(tree: Any) -> set[str]:
    if isinstance(tree, str):
        return {tree}
    values = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    return set().union(*map(_texts, values))


def completed_by_installed(experiment: Experiment) -> Experiment:
    """Return an experiment with the installed plug-ins that register what it names."""
    tops = {point.module.partition(".")[0] for point in installed_points()}
    if not tops:
        return experiment
    known = {plugin.name for plugin in experiment.plugins}
    homes = {home.partition(".")[0]: home for home in _homes(experiment) if home}
    found = [installed_plugin(homes[top]) for top in sorted(homes) if top in tops - known]
    if not found:
        return experiment
    return experiment.model_copy(update={KEY: (*experiment.plugins, *found)})


def _homes(experiment: Experiment) -> Iterable[str]:
    """Yield the modules that register what an experiment names."""
    for key, kind in COMPONENTS.items():
        yield registry(kind).home(attrgetter(key)(experiment).name)
    groups, architectures = registry("model group"), registry("architecture")
    name = experiment.model.group
    members = groups.get(name).members if name in groups.names() else (name,)
    yield groups.home(name)
    architectures.names()  # an entry's home is known once it has been looked for
    yield from (architectures.home(member) for member in members)
