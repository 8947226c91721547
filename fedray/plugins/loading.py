"""Texts as modules of this process, under the same names in every process of a run.

So what is defined there can be pickled here and unpickled there. A traceback shows the user's own
file and line, on every node: the text is kept where Python looks lines up.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from threading import RLock
from types import ModuleType

from fedray.errors import PLUGIN_MARK, UserError, named, plugin_line
from fedray.files import cache_folder, write_atomic
from fedray.plugins.installed import check_installed
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import read_source
from fedray.plugins.trust import check_trusted, record
from fedray.registry import activate, check_taken, forget

_lock = RLock()


@dataclass
class _Process:
    """What this process has of plug-ins.

    Attributes:
        plugins: those that are in use.
        modules: of every plug-in that was ever loaded, by its key, its modules by name.
        displaced: modules of others that had the names of those in use.
    """

    plugins: tuple[Plugin, ...] = ()
    modules: dict[str, dict[str, ModuleType]] = field(default_factory=dict)
    displaced: dict[str, ModuleType] = field(default_factory=dict)

    def text_of(self, module: str) -> tuple[Plugin, str] | None:
        """The plug-in in use that has a module, and its file."""
        for plugin in self.plugins:
            for file in _files_of(module):
                if file in plugin.files:
                    return plugin, file
        return None


_process = _Process()


class _Finder(MetaPathFinder):
    """Finds the modules of the plug-ins that are in use, before any other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, if a plug-in has it."""
        found = _process.text_of(fullname)
        if found is None:
            return None
        plugin, file = found
        is_package = file.endswith("/__init__.py")
        return spec_from_loader(fullname, _Text(plugin, file), is_package=is_package)


class _Text(Loader):
    """Executes one file of a plug-in."""

    def __init__(self, plugin: Plugin, file: str) -> None:
        self._plugin, self._file = plugin, file

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the text."""
        text, path = self.get_source(module.__name__), self._plugin.path_of(self._file)
        _place(module, self._plugin)
        vars(module)[PLUGIN_MARK] = self._plugin.key
        _process.modules.setdefault(self._plugin.key, {})[module.__name__] = module
        exec(compile(text, path, "exec", dont_inherit=True), vars(module))

    def get_source(self, fullname: str) -> str:
        """The text, for `inspect`."""
        return self._plugin.files[self._file]


def _place(module: ModuleType, plugin: Plugin) -> None:
    """Set `__file__`, and keep the lines for tracebacks, whatever becomes of the file."""
    file = next(file for file in _files_of(module.__name__) if file in plugin.files)
    text, path = plugin.files[file], plugin.path_of(file)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module.__file__ = _file_with(text, path, plugin, file)


def _files_of(module: str) -> tuple[str, str]:
    """What a module's file may be called in a plug-in."""
    inner = module.replace(".", "/")
    return f"{inner}.py", f"{inner}/__init__.py"


def _file_with(text: str, path: str, plugin: Plugin, file: str) -> str:
    """A file of this node with the text: the user's own if it is there, else one in the cache."""
    try:
        if Path(path).is_file() and read_source(Path(path)) == text:
            return path
        copy = cache_folder() / "plugins" / plugin.sha256[:32] / file
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, text)
        return str(copy)
    except (OSError, UserError):
        return path


def use(plugins: Iterable[Plugin], *, check: bool = False) -> None:
    """Have this process know these plug-ins and no others; what it had loaded comes back at once.

    Args:
        plugins: of the experiment that is worked on next.
        check: also refuse names that fedray has, which takes the import of all of that kind.

    Raises:
        UserError: when one does not import, is not installed here as it should be, registers a
            name that is taken, or is not trusted; then nothing has changed.
    """
    wanted = tuple(plugins)
    if wanted == _process.plugins:
        return
    check_trusted(wanted, _readable)
    with _lock:
        before = _process.plugins
        _switch(wanted)
        try:
            for plugin in wanted:
                _load(plugin)
            if check:
                check_taken({plugin.key: plugin.label for plugin in wanted})
        except BaseException:
            _switch(before)
            for unfit in set(_keys(wanted)) - set(_keys(before)):
                _process.modules.pop(unfit, None)
                forget(unfit)
            raise


def plugin_of(defined: type) -> str | None:
    """The hash of the plug-in in use that defines a class; None of any other."""
    found: str | None = getattr(sys.modules.get(defined.__module__), PLUGIN_MARK, None)
    return None if found is None else found.partition(" ")[0]


def _keys(plugins: Iterable[Plugin]) -> list[str]:
    return [plugin.key for plugin in plugins]


def _switch(plugins: tuple[Plugin, ...]) -> None:
    """Take the modules of some plug-ins out of `sys.modules`, and put those of others in."""
    for plugin in _process.plugins:
        for name in _process.modules.get(plugin.key, ()):
            sys.modules.pop(name, None)
    sys.modules.update(_process.displaced)
    _process.displaced.clear()
    _process.plugins = plugins
    tops = {plugin.name for plugin in plugins if plugin.is_shipped}
    for name in list(sys.modules):
        if name.partition(".")[0] in tops:
            _process.displaced[name] = sys.modules.pop(name)
    for plugin in plugins:
        for name, module in _process.modules.get(plugin.key, {}).items():
            sys.modules[name] = module
            _place(module, plugin)  # its file may be gone by now
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    activate(_keys(plugins))


def _load(plugin: Plugin) -> None:
    """Import a plug-in's module, unless that was done before.

    Raises:
        UserError: when it does not import, with the line.
    """
    if not plugin.is_shipped:
        check_installed(plugin)
    try:
        importlib.import_module(plugin.module)
    except (Exception, SystemExit) as error:  # a script may end in sys.exit()
        where = "" if isinstance(error, SyntaxError) else plugin_line(error)
        raise UserError(f"plug-in {plugin.label} does not import: {named(error)}{where}") from None
    record(plugin)


def _readable(plugin: Plugin) -> str:
    """Return a file of this node with the text of a plug-in's module, for the user to read."""
    file = next(file for file in _files_of(plugin.module) if file in plugin.files)
    return _file_with(plugin.files[file], plugin.path_of(file), plugin, file)
