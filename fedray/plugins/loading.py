"""Import the texts of plug-ins as modules, under the same names in every process of a run.

Objects of a plug-in can thus be pickled in one process and unpickled in another. A process has one
version of a module at a time: another text, or the same text from another folder, replaces it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from threading import RLock
from types import ModuleType

from fedray.base.errors import PLUGIN_MARK, UserError, named, plugin_line
from fedray.plugins.entry_points import check_version
from fedray.plugins.named import check_named
from fedray.plugins.plugin import Plugin
from fedray.registry import activate, check_taken, forget

_lock = RLock()
_used: tuple[Plugin, ...] = ()
"""The plug-ins whose entries are available."""
_loaded: dict[str, Plugin] = {}
"""The plug-ins that this process has imported, by module."""


class _Finder(MetaPathFinder):
    """Finder of the modules of loaded plug-ins; runs before all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for plugin in _loaded.values():
            file = plugin.file_of(fullname)
            if file is not None:
                return spec_from_loader(fullname, _TextLoader(plugin, file))
        return None


class _TextLoader(ExecutionLoader):
    """Loader of one file of a plug-in; tracebacks name the file that the text was read from."""

    def __init__(self, plugin: Plugin, file: str) -> None:
        self._plugin, self._file = plugin, file

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[PLUGIN_MARK] = self._plugin.key
        super().exec_module(module)

    def get_filename(self, fullname: str) -> str:
        """Return the path that the text was read from, possibly on another node."""
        return self._plugin.path_of(self._file)

    def get_source(self, fullname: str) -> str:
        return self._plugin.files[self._file]

    def is_package(self, fullname: str) -> bool:
        return Path(self._file).name == "__init__.py"


def use(plugins: Iterable[Plugin], *, check: bool = False) -> bool:
    """Import plug-ins, and make their entries available and those of all other plug-ins not.

    Args:
        plugins: the plug-ins of the next experiment.
        check: also refuse entries with a name of fedray's, which imports all modules of that kind.

    Returns:
        True if a module was replaced by another version, so that its objects must be made again.

    Raises:
        UserError: if a plug-in cannot be imported, is installed in another version, registers a
            name that is taken, or comes from a folder. No plug-in is in use then.
    """
    global _used
    wanted = tuple(plugins)
    if wanted == _used:
        return False
    check_named(wanted)
    with _lock:
        names = {plugin.name for plugin in wanted}
        stale = [old for old in _loaded.values() if old.name in names and old not in wanted]
        try:
            for plugin in stale and (*stale, *wanted):  # plug-ins may have imported each other
                _unload(plugin)
            new = [plugin for plugin in wanted if plugin.module not in _loaded]
            for plugin in new:
                _prepare(plugin)
            for plugin in new:
                _import(plugin)
            _used = wanted
            activate(plugin.key for plugin in wanted)
            if check:
                check_taken({plugin.key: plugin.label for plugin in wanted})
        except BaseException:
            _used = ()
            activate(())
            for plugin in wanted:
                _unload(plugin)
            raise
    return bool(stale)


def plugin_of(defined: type) -> str | None:
    """Return the hash of the plug-in that defines a class; None for any other class."""
    key: str | None = getattr(sys.modules.get(defined.__module__), PLUGIN_MARK, None)
    return None if key is None else key.partition(" ")[0]


def _prepare(plugin: Plugin) -> None:
    """Make a plug-in's modules known to the finder; check the version of an installed plug-in."""
    if not plugin.is_shipped:
        check_version(plugin)
    elif all(other.name != plugin.name for other in _loaded.values()):
        _remove_modules(plugin.name)  # a script may have imported its own file
    _loaded[plugin.module] = plugin
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _import(plugin: Plugin) -> None:
    """Import a plug-in's module; raise a UserError that names the line if the import fails."""
    try:
        importlib.import_module(plugin.module)
    except (Exception, SystemExit) as error:  # a script may end in sys.exit()
        where = "" if isinstance(error, SyntaxError) else plugin_line(error)
        raise UserError(f"plug-in {plugin.label} does not import: {named(error)}{where}") from None


def _unload(plugin: Plugin) -> None:
    if _loaded.get(plugin.module) == plugin:
        del _loaded[plugin.module]
        forget(plugin.key)
        if plugin.is_shipped:
            _remove_modules(plugin.name)


def _remove_modules(top: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        del sys.modules[name]
