"""Plug-ins: files and packages of users that register entries, such as methods and models.

The text of a plug-in is read once, hashed, sent to all processes of a run, imported there under its
own name, so that its objects can be pickled, and copied into the run's folder. A module of an
installed package with an entry point in the group `fedray.plugins` is not sent: it must be
installed on every node in the version whose hash the experiment holds.

Text in a folder never runs by itself: the user names a file of the same content, with `--plugin` or
in an experiment of his own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import Path, PurePosixPath
from threading import RLock
from types import ModuleType
from typing import ClassVar

from fedray.base.errors import PLUGIN_MARK, UserError, named, one_line, plugin_line
from fedray.base.imports import site_folders
from fedray.config.registry import activate, check_taken, forget, installed_points, search_path
from fedray.storage.files import check_path, write_atomic

INIT = "__init__.py"
_lock = RLock()
_named: set[str] = set()
"""SHA-256 of the texts that this process may run."""
_used: tuple[Plugin, ...] = ()
"""The plug-ins whose entries are available."""
_loaded: dict[str, Plugin] = {}
"""The plug-ins that this process has imported, by module; one version of each."""


@dataclass(frozen=True)
class Plugin:
    """A module of a user.

    Attributes:
        module: the module to import, "mine" or "mine.method".
        folder: the folder of the files, for messages, tracebacks and `__file__`.
        files: the texts of the file, or of all files of the package, by path below `folder`, such
            as "mine/method.py"; empty for an installed module.
        version: the version of an installed module's distribution; else "".
        sha256: hash of module and files; computed if "", except for an installed module.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    module: str
    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        if not all(part.isidentifier() for part in self.module.split(".")):
            raise ValueError(f"{self.module!r} is not the name of a module")
        for name in self.files:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"the file {name!r} lies outside of the plug-in's folder")
        if not self.files and not self.sha256:
            raise ValueError(f"the plug-in {self.module} has no files")
        digest = hash_of(self.module, self.files) if self.files else self.sha256
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"the text of plug-in {self.module} does not match its sha256; to use a changed "
                "text, give its file"
            )
        object.__setattr__(self, "sha256", digest)

    @property
    def name(self) -> str:
        """The name of the top-level module."""
        return self.module.partition(".")[0]

    @property
    def key(self) -> str:
        """The hash and the folder; identifies a plug-in in this process."""
        return f"{self.sha256} {self.folder}"

    @property
    def label(self) -> str:
        """The name in messages: the file or the module."""
        return f"{self.name}.py" if f"{self.name}.py" in self.files else self.module

    @property
    def given(self) -> str:
        """The value for `--plugin`: a file, or the name of an installed module."""
        file = self.file_of(self.module)
        return self.module if file is None else self.path_of(file)

    def file_of(self, module: str) -> str | None:
        """Return the file with a module's text; None if the plug-in has no such module."""
        inner = module.replace(".", "/")
        return next((f for f in (f"{inner}.py", f"{inner}/{INIT}") if f in self.files), None)

    def path_of(self, file: str) -> str:
        """Return the path that a file was read from."""
        return str(Path(self.folder) / file)


def hash_of(module: str, files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a plug-in's module name and files."""
    return hashlib.sha256(json.dumps([module, sorted(files.items())]).encode()).hexdigest()


# --- reading --------------------------------------------------------------------------------------


def is_path(name: str, folder: Path = Path()) -> bool:
    """Return True if a name denotes a file or folder, not a module."""
    return name.endswith(".py") or os.sep in name or (folder / name / INIT).is_file()


def located(name: str, folder: Path) -> str:
    """Return the absolute path of a file or folder below `folder`, and any other name unchanged."""
    path = folder / Path(name).expanduser()
    return str(path.absolute()) if path.exists() and is_path(name, folder) else name


def read_plugin(name: str) -> Plugin:
    """Read a plug-in.

    Args:
        name: a file, which is read with the package around it; a package's folder; or an installed
            module with an entry point.

    Raises:
        UserError: if the plug-in is missing, unreadable, or has the name of another module.
    """
    try:
        check_path(name)
    except ValueError as error:
        raise UserError(f"plug-in: {error}") from None
    if not is_path(name):
        return installed_plugin(name)
    path = Path(name).expanduser().absolute()
    root = file = path / INIT if path.is_dir() else path
    if not file.is_file():
        job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
        hint = "; a submitted job has only the files below its --working-dir" if job else ""
        raise UserError(f"plug-in {name}: {file} does not exist{hint}")
    while (root.parent / INIT).is_file():
        root = root.parent
    parts = file.relative_to(root.parent).with_suffix("").parts
    module = parts[:-1] if parts[-1] == "__init__" else parts
    for part in (part for part in module if not part.isidentifier()):
        better = "".join(char if char.isalnum() else "_" for char in part)
        raise UserError(
            f"plug-in {name}: Python cannot import the name {part!r}; rename it to {better!r}"
        )
    check_module_name(module[0], root.parent)
    return Plugin(".".join(module), str(root.parent), texts_of(root))


def texts_of(root: Path) -> dict[str, str]:
    """Return the texts of a Python file, or of all in a package, by path below its folder."""
    paths = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    try:
        texts = {}
        for path in paths:
            with tokenize.open(path) as file:  # in its declared encoding
                texts[path.relative_to(root.parent).as_posix()] = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"plug-in {root} cannot be read: {one_line(error)}") from None
    return texts


def check_module_name(name: str, root: Path) -> None:
    """Raise a UserError if the module `name` in `root` has the name of another module."""
    spec = PathFinder.find_spec(name, site_folders())
    if name in sys.stdlib_module_names:
        other = "of Python"
    elif name == "fedray":
        other = "of this package"
    elif spec is not None and spec.origin and not Path(spec.origin).is_relative_to(root):
        other = f"installed as {spec.origin}"
    else:
        return
    raise UserError(f"a plug-in cannot be called '{name}', the name of a module {other}; rename it")


def installed_plugin(module: str) -> Plugin:
    """Return a module of an installed package, with its version and the hash of its package.

    Only entry points count, because a stranger's folder could name every module of Python's path.

    Raises:
        UserError: if no installed package has it as an entry point.
    """
    top = module.partition(".")[0]
    points = [point for point in installed_points() if point.module.partition(".")[0] == top]
    spec = PathFinder.find_spec(top, search_path()) if points else None
    if spec is None or spec.origin is None:
        raise UserError(
            f"the plug-in {module} is neither a file here nor installed as an entry point "
            "fedray.plugins of a package; pass its file or its package's folder with --plugin"
        )
    file = Path(spec.origin)
    root = file.parent if file.name == INIT else file
    version = next((str(point.dist.version) for point in points if point.dist), "")
    return Plugin(module, str(root.parent), version=version, sha256=hash_of(module, texts_of(root)))


# --- what may run ---------------------------------------------------------------------------------


def allow(plugins: Iterable[Plugin]) -> None:
    """Let this process run the texts of plug-ins; an actor may run what its driver sends."""
    _named.update(plugin.sha256 for plugin in plugins)


def named_plugins(names: Iterable[str]) -> tuple[Plugin, ...]:
    """Read plug-ins, files or modules, that the user has named, and let this process run them."""
    plugins = tuple(map(read_plugin, names))
    allow(plugins)
    return plugins


def plugin_flags(plugins: Iterable[Plugin]) -> list[str]:
    """Return the words of a command line that name plug-ins."""
    return [word for plugin in plugins for word in ("--plugin", plugin.given)]


def write_copies(folder: Path, plugins: Iterable[Plugin]) -> None:
    """Write the texts of plug-ins below a run's folder, as they were run."""
    for plugin in plugins:
        for file, text in plugin.files.items():
            copy = folder / "plugins" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, text)


# --- importing ------------------------------------------------------------------------------------


class _Finder(MetaPathFinder):
    """Finder of the modules of loaded plug-ins; runs before all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for plugin in _loaded.values():
            if (file := plugin.file_of(fullname)) is not None:
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
        return Path(self._file).name == INIT


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
    for plugin in wanted:
        if plugin.files and plugin.sha256 not in _named:
            raise UserError(
                f"the plug-in {plugin.label} comes from a folder, whose code never runs by itself; "
                f"name a file of that content with --plugin, for example {plugin.given}"
            )
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
    if not plugin.files and (here := installed_plugin(plugin.module)).sha256 != plugin.sha256:
        raise UserError(
            f"the plug-in {plugin.module} that is installed here (version {here.version or '?'}, "
            f"hash {here.sha256[:12]}) is not that of the experiment (version "
            f"{plugin.version or '?'}, hash {plugin.sha256[:12]}); install the same one"
        )
    if plugin.files and all(other.name != plugin.name for other in _loaded.values()):
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
        if plugin.files:
            _remove_modules(plugin.name)


def _remove_modules(top: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == top]:
        del sys.modules[name]
