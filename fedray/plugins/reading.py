"""From `--plugin FILE_OR_MODULE` to a plug-in whose text can travel.

A file that lies in a package is read with the whole package. What a plug-in imports from beside it
is a plug-in too, so that it travels as well.
"""

from __future__ import annotations

import ast
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from fedray.errors import UserError, one_line, shown
from fedray.files import check_path
from fedray.plugins.installed import installed_plugin, is_installed, site_folders
from fedray.plugins.plugin import Plugin

MOST_CHARACTERS = 300_000
"""Of all plug-ins of an experiment, which every call of a worker carries."""
INIT = "__init__.py"


def is_path(given: str) -> bool:
    """Whether a word names a file or folder, not a module."""
    return given.endswith(".py") or os.sep in given or (Path(given) / INIT).is_file()


def located(given: str, folder: Path) -> str:
    """A file's or folder's path made absolute from `folder`, if it is there; else as it is."""
    path = folder / Path(given).expanduser()
    return str(path.absolute()) if path.exists() and not _is_module_name(given, path) else given


def _is_module_name(given: str, path: Path) -> bool:
    return not given.endswith(".py") and os.sep not in given and not (path / INIT).is_file()


def read_plugin(given: str) -> Plugin:
    """Read a plug-in.

    Args:
        given: a file, a folder with an __init__.py, or a module that Python finds from here.

    Raises:
        UserError: when it is not there, cannot be read, or is called as something else is.
    """
    try:
        check_path(given)
    except UserError as error:
        raise UserError(f"plug-in: {error}") from None
    if is_path(given):
        return _of_path(given)
    if not all(part.isidentifier() for part in given.split(".")):
        raise UserError(
            f"plug-in {shown(given)} is neither a file (mine.py), a folder with {INIT}, nor a "
            "module's name"
        )
    return _of_module(given)


def _of_path(given: str) -> Plugin:
    path = Path(given).expanduser().absolute()
    file = path / INIT if path.is_dir() else path
    if not file.is_file():
        what = f"has no {INIT}, so name a file in it" if path.is_dir() else "does not exist"
        in_job = "; a submitted job has only the files below its --working-dir"
        hint = in_job if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
        raise UserError(f"plug-in {given}: {path} {what}{hint}")
    root = file.parent
    while (root / INIT).is_file():
        root = root.parent
    parts = file.relative_to(root).with_suffix("").parts
    module = parts[:-1] if parts[-1] == "__init__" else parts
    for part in module:
        if not part.isidentifier():
            better = "".join(char if char.isalnum() else "_" for char in part)
            raise UserError(
                f"plug-in {given}: {part!r} is no name that Python can import; call it {better!r}"
            )
    check_module_name(module[0], root)
    return _plugin(".".join(module), root)


def _of_module(given: str) -> Plugin:
    top = given.partition(".")[0]
    spec = _spec(top, [str(Path.cwd()), *sys.path])
    if spec is None:
        raise UserError(
            f"plug-in {given}: there is neither a file nor a module of this name; give a path, "
            f"for example {given.rsplit('.', 1)[-1]}.py, or install the module's package"
        )
    if is_installed(top):
        return installed_plugin(given)
    locations = list(spec.submodule_search_locations or [])
    file = Path(locations[0]) / INIT if locations else Path(str(spec.origin))
    if file.suffix != ".py":
        raise UserError(
            f"plug-in {given}: {file} is no Python text, which alone travels; install it on every "
            "node with an entry point in the group fedray.plugins"
        )
    check_module_name(top, file.parent.parent if locations else file.parent)
    plugin = _plugin(given, file.parent.parent if locations else file.parent)
    inner = given.replace(".", "/")
    if not {f"{inner}.py", f"{inner}/{INIT}"} & set(plugin.files):
        raise UserError(f"plug-in {given}: {plugin.folder} has no such module in {top}")
    return plugin


def _spec(top: str, path: Sequence[str]) -> ModuleSpec | None:
    """Where Python finds a module, which is not imported for it."""
    return PathFinder.find_spec(top, list(path))


def _plugin(module: str, root: Path) -> Plugin:
    top = module.partition(".")[0]
    single = root / f"{top}.py"
    paths = [single] if single.is_file() else sorted((root / top).rglob("*.py"))
    paths = [path for path in paths if not _is_hidden(path.relative_to(root))]
    files = {path.relative_to(root).as_posix(): read_source(path) for path in paths}
    return Plugin(module, str(root), files)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def read_source(path: Path) -> str:
    """A file of Python in the encoding that it names, lines ended alike.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        with tokenize.open(path) as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"plug-in {path} cannot be read: {one_line(error)}") from None


def changed_file(plugin: Plugin) -> str | None:
    """A file of a plug-in that is there with another text than the plug-in's; None of none.

    Files that are not there, as on another machine, have not changed.
    """
    for file, text in plugin.files.items():
        path = Path(plugin.path_of(file))
        if path.is_file() and read_source(path) != text:
            return str(path)
    return None


def check_module_name(name: str, root: Path) -> None:
    """Refuse a plug-in that is called as another module is.

    Args:
        name: of the module.
        root: the folder that it lies in.

    Raises:
        UserError: naming that module.
    """
    spec = _spec(name, site_folders())
    if name in sys.stdlib_module_names:
        other = "Python's own"
    elif name == "fedray":
        other = "this package"
    elif spec is not None and spec.origin and not Path(spec.origin).is_relative_to(root):
        other = f"installed, {spec.origin}"
    else:
        return
    raise UserError(f"a plug-in cannot be called '{name}': there is a module {other}; rename it")


def with_siblings(read: Iterable[Plugin], given: Iterable[Plugin] = ()) -> list[Plugin]:
    """Plug-ins, with what those that were just read import from beside them.

    Args:
        read: were read here.
        given: came with their texts, and with whatever they need.

    Raises:
        UserError: when one cannot be read, two are called alike, or all are too large to travel.
    """
    found = {plugin.module: plugin for plugin in given}
    waiting = list(read)
    while waiting:
        plugin = waiting.pop(0)
        same = found.get(plugin.module)
        if same is not None and same.sha256 != plugin.sha256:
            raise UserError(
                f"two plug-ins are called '{plugin.module}', in {same.folder} and in "
                f"{plugin.folder}; rename one of them"
            )
        found.setdefault(plugin.module, plugin)
        there = {name.name for name in [*found.values(), *waiting]}
        waiting += [read_plugin(path) for path in dict.fromkeys(_siblings(plugin, there))]
    check_names(found.values())
    return list(found.values())


def needed(roots: Iterable[Plugin], plugins: Sequence[Plugin]) -> list[Plugin]:
    """Those of the plug-ins that are among the roots, or that one of these imports, in order."""
    found = list(roots)
    for plugin in found:  # which grows
        names = {name for text in plugin.files.values() for name in _imported(text)}
        found += [other for other in plugins if other.name in names and other not in found]
    return [plugin for plugin in plugins if plugin in found]


def unshipped(plugins: Iterable[Plugin]) -> str:
    """Return a sentence about modules that plug-ins import from elsewhere on Python's path; or "".

    Such a module is found here, but neither travels with the experiment nor is installed.
    """
    there = list(plugins)
    known = {"fedray", *sys.stdlib_module_names, *(plugin.name for plugin in there)}
    imported = {name for each in there for text in each.files.values() for name in _imported(text)}
    elsewhere = [
        f"{name} ({spec.origin or next(iter(spec.submodule_search_locations or ['?']))})"
        for name in sorted(imported - known)
        if _spec(name, site_folders()) is None
        and (spec := _spec(name, [str(Path.cwd()), *sys.path])) is not None
    ]
    if not elsewhere:
        return ""
    return (
        f"note: the plug-ins import {', '.join(elsewhere)}, which neither travels with the "
        "experiment nor is installed: the run's identity does not hold its content"
    )


def check_names(plugins: Iterable[Plugin]) -> None:
    """Refuse plug-ins of which two have a file in common that differs, or that are too large.

    Raises:
        UserError: naming them.
    """
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
            f"the plug-ins have {size} characters or more, and at most {MOST_CHARACTERS} travel "
            "with an experiment; install large ones on every node (entry point fedray.plugins)"
        )


def _siblings(plugin: Plugin, there: set[str]) -> Iterator[str]:
    """Files and packages beside a plug-in that it imports."""
    for text in plugin.files.values():
        for name in _imported(text):
            if name in there or name in sys.stdlib_module_names or name == "fedray":
                continue
            beside = Path(plugin.folder) / name
            if beside.with_suffix(".py").is_file():
                yield str(beside.with_suffix(".py"))
            elif (beside / INIT).is_file():
                yield str(beside)


def _imported(text: str) -> list[str]:
    """The top-level modules that a text imports, wherever it does, sorted."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # said when it is executed
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return sorted(found)
