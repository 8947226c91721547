"""Read `--plugin FILE_OR_MODULE` as a plug-in whose text can be sent to workers.

A file in a package is read with the whole package. Modules in the same folder that a plug-in
imports become plug-ins, too, so that they are sent along.
"""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from fedray.base.errors import UserError, one_line, shown
from fedray.base.imports import site_folders
from fedray.plugins.entry_points import installed_plugin, is_installed
from fedray.plugins.plugin import Plugin
from fedray.storage.files import check_path

MOST_CHARACTERS = 300_000
"""Maximal length of all plug-ins of an experiment; every call of a worker carries them."""
INIT = "__init__.py"


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
        name: a file, a folder with an __init__.py, or a module on Python's path.

    Raises:
        UserError: if the plug-in is missing, unreadable, or has the name of another module.
    """
    try:
        check_path(name)
    except ValueError as error:
        raise UserError(f"plug-in: {error}") from None
    if is_path(name):
        return _of_path(name)
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(
            f"plug-in {shown(name)} is neither a file (mine.py), a folder with {INIT}, nor a "
            "module's name"
        )
    return _of_module(name)


def _of_path(name: str) -> Plugin:
    path = Path(name).expanduser().absolute()
    file = path / INIT if path.is_dir() else path
    if not file.is_file():
        problem = f"has no {INIT}; name a file in it" if path.is_dir() else "does not exist"
        in_job = "; a submitted job has only the files below its --working-dir"
        hint = in_job if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
        raise UserError(f"plug-in {name}: {path} {problem}{hint}")
    root = file.parent
    while (root / INIT).is_file():
        root = root.parent
    parts = file.relative_to(root).with_suffix("").parts
    module = parts[:-1] if parts[-1] == "__init__" else parts
    for part in module:
        if not part.isidentifier():
            better = "".join(char if char.isalnum() else "_" for char in part)
            raise UserError(
                f"plug-in {name}: Python cannot import the name {part!r}; rename it to {better!r}"
            )
    check_module_name(module[0], root)
    return _plugin(".".join(module), root)


def _of_module(name: str) -> Plugin:
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None:
        raise UserError(
            f"plug-in {name}: there is neither a file nor a module of this name; give a path, "
            f"for example {name.rsplit('.', 1)[-1]}.py, or install the module's package"
        )
    if is_installed(top):
        return installed_plugin(name)
    locations = list(spec.submodule_search_locations or [])
    file = Path(locations[0]) / INIT if locations else Path(str(spec.origin))
    if file.suffix != ".py":
        raise UserError(
            f"plug-in {name}: {file} is not Python source, which alone can be sent to workers; "
            "install it on every node with an entry point in the group fedray.plugins"
        )
    check_module_name(top, file.parent.parent if locations else file.parent)
    plugin = _plugin(name, file.parent.parent if locations else file.parent)
    inner = name.replace(".", "/")
    if not {f"{inner}.py", f"{inner}/{INIT}"} & set(plugin.files):
        raise UserError(f"plug-in {name}: {plugin.folder} has no such module in {top}")
    return plugin


def _plugin(module: str, root: Path) -> Plugin:
    top = module.partition(".")[0]
    single = root / f"{top}.py"
    paths = [single] if single.is_file() else sorted((root / top).rglob("*.py"))
    names = {path.relative_to(root): path for path in paths}
    hidden = {
        name for name in names if any(part.startswith((".", "__pycache__")) for part in name.parts)
    }
    files = {name.as_posix(): _read(path) for name, path in names.items() if name not in hidden}
    return Plugin(module, str(root), files)


def _read(path: Path) -> str:
    """Read a Python file in its declared encoding."""
    try:
        with tokenize.open(path) as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"plug-in {path} cannot be read: {one_line(error)}") from None


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


def with_siblings(read: Iterable[Plugin], complete: Iterable[Plugin] = ()) -> list[Plugin]:
    """Return plug-ins together with the modules in their folders that they import.

    Args:
        read: plug-ins that were read from files, whose imports are followed.
        complete: plug-ins that came with their texts.

    Raises:
        UserError: if a module cannot be read, two have the same name, or all together are too
            large.
    """
    plugins = {plugin.module: plugin for plugin in complete}
    waiting = list(read)
    while waiting:
        plugin = waiting.pop(0)
        same = plugins.get(plugin.module)
        if same is not None and same.sha256 != plugin.sha256:
            raise UserError(
                f"two plug-ins are called '{plugin.module}', in {same.folder} and in "
                f"{plugin.folder}; rename one of them"
            )
        plugins.setdefault(plugin.module, plugin)
        names = {other.name for other in [*plugins.values(), *waiting]}
        waiting += [read_plugin(path) for path in dict.fromkeys(_siblings(plugin, names))]
    _check_files(plugins.values())
    return list(plugins.values())


def needed(roots: Iterable[Plugin], plugins: Sequence[Plugin]) -> list[Plugin]:
    """Return the plug-ins that are roots or that roots import, directly or not, in order."""
    reached = list(roots)
    for plugin in reached:  # the list grows during the loop
        names = {name for text in plugin.files.values() for name in _imported(text)}
        reached += [other for other in plugins if other.name in names and other not in reached]
    return [plugin for plugin in plugins if plugin in reached]


def _check_files(plugins: Iterable[Plugin]) -> None:
    """Raise a UserError if plug-ins have different files of one name, or all are too large."""
    size, owner = 0, dict[str, Plugin]()
    for plugin in plugins:
        size += sum(map(len, plugin.files.values()))
        for file, text in plugin.files.items():
            other = owner.setdefault(file, plugin)
            if other.files[file] != text:
                raise UserError(
                    f"two plug-ins have a file {file}, in {other.folder} and in {plugin.folder}; "
                    "rename one of them"
                )
    if size > MOST_CHARACTERS:
        raise UserError(
            f"the plug-ins have {size} characters or more, and at most {MOST_CHARACTERS} can be "
            "sent to workers; install large ones on every node (entry point fedray.plugins)"
        )


def _siblings(plugin: Plugin, known: set[str]) -> Iterator[str]:
    """Yield the files and packages in a plug-in's folder that it imports, without known names."""
    for text in plugin.files.values():
        for name in _imported(text):
            if name in known or name in sys.stdlib_module_names or name == "fedray":
                continue
            sibling = Path(plugin.folder) / name
            if sibling.with_suffix(".py").is_file():
                yield str(sibling.with_suffix(".py"))
            elif (sibling / INIT).is_file():
                yield str(sibling)


def _imported(text: str) -> list[str]:
    """Return the top-level modules that a text imports, also inside functions, sorted."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # reported when the text is executed
        return []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module.partition(".")[0])
    return sorted(modules)
