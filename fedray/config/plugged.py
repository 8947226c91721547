"""The plug-ins of an experiment: read, in use before anything else of it is looked at, recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedray.config.experiment import Experiment
from fedray.config.files import COMPONENTS
from fedray.config.listed import KEY, listed
from fedray.config.typed import Frozen, Tree, validate
from fedray.plugins import Plugin, installed_plugin, needed, read_plugin, trust, use, with_siblings
from fedray.registry import installed_points, registered_by, registry


class _Plugins(Frozen):
    """The key of an experiment."""

    plugins: tuple[Plugin, ...] = ()
    """With their texts."""


def read_plugins(given: Iterable[Any]) -> tuple[Plugin, ...]:
    """Read those plug-ins that are named, and take those that are there with their text.

    Raises:
        UserError: when one cannot be read, or two are called alike.
    """
    given = list(given)
    named = [read_plugin(each) for each in given if isinstance(each, str)]
    texts = {KEY: [each for each in given if not isinstance(each, str)]}
    return tuple(with_siblings(named, validate(_Plugins, texts).plugins))


def named_plugins(given: Iterable[str]) -> tuple[Plugin, ...]:
    """Read plug-ins that the user has named, which may run without a question.

    Raises:
        UserError: as `read_plugins`.
    """
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
        pairs: those with the key `plugins`, unless None, replace the tree's.
        more: further ones, which take the places of those called alike.
        trusted: whether the files that the tree names may run without a question, too. Texts that
            are part of the tree are never trusted by this.

    Raises:
        UserError: as `read_plugins`.
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
    """Read an experiment's plug-ins, and have this process use them and no others.

    Args:
        tree: as of `with_read_plugins`.
        pairs: likewise.
        more: likewise.
        trusted: likewise.

    Returns:
        As `with_read_plugins`.

    Raises:
        UserError: as `read_plugins`, and when one does not import or takes a name that is taken.
    """
    tree = with_read_plugins(tree, pairs, more, trusted=trusted)
    use(read_plugins(tree.get(KEY, ())), check=True)
    return tree


def with_used_plugins(experiment: Experiment) -> Experiment:
    """An experiment without the plug-ins that its numbers do not depend on.

    Used is a plug-in that registers something that the experiment names, or a metric, which every
    run measures; or that registers nothing, and which no other imports: it is there for its
    effects. So is what these import.

    Args:
        experiment: resolved; its plug-ins are in use.
    """
    plugins = experiment.plugins
    named = set(_texts(experiment.model_dump(mode="json", exclude={KEY, "name"})))
    roots = [plugin for plugin in plugins if _is_used(plugin, named, plugins)]
    return experiment.model_copy(update={KEY: tuple(needed(roots, plugins))})


def _is_used(plugin: Plugin, named: Collection[str], plugins: Sequence[Plugin]) -> bool:
    registered = registered_by(plugin.key)
    if not registered:
        return not any(plugin in needed([other], plugins) for other in plugins if other != plugin)
    return "metric" in registered or any(set(names) & set(named) for names in registered.values())


def _texts(tree: Any) -> Iterator[str]:
    """The texts among the values of a tree."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping | list):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _texts(each)


def completed_by_installed(experiment: Experiment) -> Experiment:
    """An experiment with the installed plug-ins that register what it names.

    Raises:
        UserError: when the architectures of its models are not there.
    """
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
    """The modules that register what an experiment names."""
    for key, kind in COMPONENTS.items():
        found: Any = experiment
        for part in key.split("."):
            found = getattr(found, part)
        yield registry(kind).home(found.name)
    groups, architectures = registry("model group"), registry("architecture")
    name = experiment.model.group
    members = groups.get(name).members if name in groups.names() else (name,)
    yield groups.home(name)
    architectures.names()  # an entry's home is known once it has been looked for
    yield from (architectures.home(member) for member in members)
