"""The texts of plug-ins that this process may run: those of files that the user has named.

Text in a folder never runs by itself: the user names a file of the same content, with `--plugin` or
in an experiment of his own. An actor may run what its driver sends.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedray.base.errors import UserError
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import read_plugin, with_siblings

_named: set[str] = set()
"""SHA-256 of the texts that this process may run."""


def allow(plugins: Iterable[Plugin]) -> None:
    """Let this process run the texts of plug-ins."""
    _named.update(plugin.sha256 for plugin in plugins)


def named_plugins(names: Iterable[str]) -> tuple[Plugin, ...]:
    """Read plug-ins, files or modules, that the user has named, and let this process run them."""
    plugins = tuple(with_siblings(map(read_plugin, names)))
    allow(plugins)
    return plugins


def check_named(plugins: Iterable[Plugin]) -> None:
    """Raise a UserError if the user has not named a file with the text of a plug-in."""
    for plugin in plugins:
        if plugin.is_shipped and plugin.sha256 not in _named:
            raise UserError(
                f"the plug-in {plugin.label} comes from a folder, whose code never runs by itself; "
                f"name a file of that content with --plugin, for example {plugin.given}"
            )


def plugin_flags(plugins: Iterable[Plugin]) -> list[str]:
    """Return the words of a command line that name plug-ins."""
    return [word for plugin in plugins for word in ("--plugin", plugin.given)]
