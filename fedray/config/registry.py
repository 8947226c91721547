"""Registries of everything that an experiment chooses by name, one for each kind.

An entry is a class or an object with a `name`, a `version` of its code, optional typed parameters
(`config.Entry`), and a docstring whose first line describes it.
Registering an entry adds it to listings, the reference page, validation and name suggestions.

The registering file belongs to this package, to a plug-in (`config/plugins.py`), whose entries are
available while the plug-in is used, or to an installed package with an entry point in the group
`fedray.plugins`.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache, reduce
from importlib.metadata import EntryPoint, EntryPoints, distributions
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from fedray.base.errors import PLUGIN_MARK, UserError, named, nearest
from fedray.storage.files import LONGEST_NAME, check_name

HOMES = MappingProxyType(
    {
        "algorithm": "fedray.core.algorithm",
        "optimizer": "fedray.core.optimizers",
        "learning rate schedule": "fedray.core.optimizers",
        "architecture": "fedray.models.architectures",
        "model group": "fedray.models.groups",
        "CLIP": "fedray.models.clip.sources",
        "data source": "fedray.data.sources",
        "partition": "fedray.data.partitions",
        "data evolution": "fedray.data.evolution",
        "public data": "fedray.data.public",
        "augmentation": "fedray.data.augment",
        "text encoder": "fedray.language.encoders.base",
        "text style": "fedray.language.styles",
        "metric": "fedray.evaluation.metrics",
    }
)
"""The module that holds the registry of each kind."""

GROUP = "fedray.plugins"
"""The group of entry points through which installed packages register entries."""

T = TypeVar("T")
_registries: dict[str, Registry[Any]] = {}
_active: tuple[str, ...] = ()
"""The keys of the plug-ins whose entries are currently available."""
_installed: set[str] = set()
"""The entry points that this process has loaded."""


class Registry(Generic[T]):
    """The registry of one kind of entry.

    Modules are imported on demand: an entry x is first looked up in a module x of the package. All
    modules are imported if that fails, or if all names are requested.

    Args:
        kind: the word for an entry in error messages; a key of `HOMES`, or another word.
        package: the dotted name of the package or module whose modules register the entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._homes: dict[str, str] = {}
        self._plugged: dict[str, dict[str, T]] = {}
        self._scanned = False
        _registries[kind] = self

    def add(self, entry: T) -> T:
        """Register an entry under its `name`; also a class decorator.

        Raises:
            ValueError: if the entry has no name, a name that no file can have, or the name of
                another entry.
        """
        name = getattr(entry, "name", None)
        if not isinstance(name, str):
            raise ValueError(f"{entry!r} has no name, which every {self.kind} needs")
        try:
            check_name(name)
        except UserError as error:
            raise ValueError(f"the {self.kind} {entry!r} has no valid name: {error}") from None
        home, plugin, in_cell = _who_registers()
        entries = self._entries if plugin is None else self._plugged.setdefault(plugin, {})
        other = entries.get(name)
        in_cells = in_cell and self._homes.get(name) == home
        if other is not None and not _is_reloaded(other, entry, in_cells):
            raise ValueError(f"two {self.kind}s are called '{name}': {other!r} and {entry!r}")
        entries[name] = entry
        if plugin is None:
            self._homes[name] = home
        return entry

    def get(self, name: str) -> T:
        """Return the entry called `name`; case, hyphens and underscores are ignored.

        Raises:
            UserError: if no entry has this name; the message suggests the nearest one.
        """
        for plugin in _active:
            if name in self._plugged.get(plugin, ()):
                return self._plugged[plugin][name]
        if name not in self._entries and name.isidentifier():
            for module in self._modules():
                if module.rsplit(".", 1)[-1] == name:
                    importlib.import_module(module)
        if name not in self._entries:
            self._scan()
        if name not in self._entries:
            matches = [entry for entry in self.entries() if spelled(name) in _spellings(entry)]
            if len(matches) != 1 or "/" in name:
                raise unknown(self.kind, name, self.names())
            return matches[0]
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._all())

    def entries(self) -> list[T]:
        """Return all entries, sorted by name."""
        return [entry for _, entry in sorted(self._all().items())]

    def home(self, name: str) -> str:
        """Return the module that registered an entry; "" for unknown entries and plug-ins'."""
        return self._homes.get(name, "")

    def check_taken(self, plugins: Mapping[str, str]) -> None:
        """Refuse plug-ins that register a name of this package or of another plug-in."""
        owner: dict[str, str] = {}
        for plugin, label in plugins.items():
            for name, entry in self._plugged.get(plugin, {}).items():
                self._scan()
                other = self._entries.get(name)
                if other is not None and not _is_reloaded(other, entry):
                    home = self._homes.get(name) or "fedray"
                else:
                    home = owner.setdefault(name, label)
                if home != label:
                    raise UserError(
                        f"plug-in {label} registers the {self.kind} '{name}', which already "
                        f"exists (in {home}); give yours another name"
                    )

    def _all(self) -> dict[str, T]:
        self._scan()
        plugged = (self._plugged.get(plugin, {}) for plugin in _active)
        return reduce(operator.or_, plugged, self._entries)

    def _modules(self) -> Iterable[str]:
        """Yield the names of all modules below the package, without importing them."""
        package = importlib.import_module(self.package)
        for folder in getattr(package, "__path__", ()):
            yield from _modules_below(Path(folder), self.package)

    def _scan(self) -> None:
        if self._scanned:
            return
        for module in self._modules():
            importlib.import_module(module)
        _load_installed()
        self._scanned = True


def registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind, a key of `HOMES`."""
    importlib.import_module(HOMES[kind])
    return _registries[kind]


def canonical_name(kind: str, name: str) -> str:
    """Return the name of the entry that a spelling chooses; an unknown name is returned as it is.

    Args:
        kind: a key of `HOMES`.
        name: a spelling that `Registry.get` accepts.
    """
    try:
        return str(registry(kind).get(name).name)
    except UserError:  # reported when the entry is needed, with the plug-ins in use
        return name


def activate(plugins: Iterable[str]) -> None:
    """Make the entries of the plug-ins with these keys available, and hide those of all others."""
    global _active
    _active = tuple(plugins)


def registered_by(plugin: str) -> dict[str, list[str]]:
    """Return, by kind, the names that the plug-in with this key has registered in this process."""
    names = {
        kind: sorted(entries._plugged.get(plugin, ())) for kind, entries in _registries.items()
    }
    return {kind: registered for kind, registered in names.items() if registered}


def spelled(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return "".join(char for char in name.casefold() if char.isalnum() or char == "+")


def _spellings(entry: Any) -> set[str]:
    return {spelled(entry.name), spelled(str(getattr(entry, "title", entry.name)))}


def unknown(kind: str, name: str, valid: Collection[str]) -> UserError:
    """Return the error for an unknown name, with the nearest name and a hint about plug-ins.

    Args:
        kind: one kind, or several: "model group or architecture".
        name: the unknown name.
        valid: the valid names.
    """
    hint = "If it is your own, give its file with --plugin."
    registered = set().union(*map(registered_by, _active))
    if _active and not registered & set(kind.split(" or ")):
        hint = f"The plug-ins in use register no {kind}."
    return UserError(f"there is no {kind} '{name[:LONGEST_NAME]}'.{nearest(name, valid)} {hint}")


def check_taken(plugins: Mapping[str, str]) -> None:
    """Call `Registry.check_taken` of every registry."""
    for entries in list(_registries.values()):
        entries.check_taken(plugins)


def forget(plugin: str) -> None:
    """Remove all entries that the plug-in with this key has registered."""
    for entries in _registries.values():
        entries._plugged.pop(plugin, None)


def installed_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages; cached, since a search takes 0.1 s."""
    return _points(tuple(search_path()))


def search_path() -> list[str]:
    """Return Python's path without the current folder, which may be a stranger's."""
    try:
        here = os.path.realpath(os.curdir)
    except FileNotFoundError:  # it has been removed
        return [entry for entry in sys.path if entry]
    return [entry for entry in sys.path if os.path.realpath(entry) != here]


@cache
def _points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    points: dict[str, EntryPoints] = {}
    for dist in distributions(path=[*path]):
        if chosen := dist.entry_points.select(group=GROUP):
            points.setdefault(dist.name, chosen)  # Python imports the first one on its path
    return tuple(point for of_dist in points.values() for point in of_dist)


def _load_installed() -> None:
    """Load the entry points of installed packages in `GROUP`, each once."""
    for point in installed_points():
        if point.value in _installed:
            continue
        _installed.add(
            point.value
        )  # before loading, which may look up names and so come here again
        try:
            point.load()
        except Exception as error:
            _installed.discard(point.value)
            package = "" if point.dist is None else f" of the package {point.dist.name}"
            raise UserError(
                f"the installed plug-in {point.value}{package} does not import: {named(error)}; "
                "repair or uninstall it"
            ) from None


def _who_registers() -> tuple[str, str | None, bool]:
    """Return the innermost module being imported, its plug-in's key or None, and if it is a cell.

    Cells of a notebook and lines of a console are in no file of their module.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    module = frame.f_globals
    in_cell = module.get("__file__") != frame.f_code.co_filename
    return module.get("__name__", ""), module.get(PLUGIN_MARK), in_cell


def parameters_of(entry: Any) -> Any:
    """Return the entry if it has parameters, else None."""
    return entry if hasattr(entry, "model_fields") else None


def version_of(entry: Any) -> int | str:
    """Return the version of the package's code that an entry runs; at least 1.

    A commit that changes the numbers of an entry raises `version` in its class. Raising it in a
    base class raises it for all subclasses, of plug-ins, too; the code of a plug-in itself is in
    the identity of a run by its hash. Entries of scripts and notebooks have no file that a run
    could record, so the version of such an entry is the text "1, code HASH".
    """
    if inspect.isclass(entry):
        classes = (cls for cls in entry.__mro__ if cls.__module__.split(".")[0] == "fedray")
        version = 1 + sum(int(vars(cls).get("version", 1)) - 1 for cls in classes)
    else:
        version = entry.version
    if not any(entry is found for kind in _registries for found in registered_in_scripts(kind)):
        return version
    from fedray.base.fingerprint import fingerprint  # imports torch

    return f"{version}, code {fingerprint(entry)}"


def registered_in_scripts(kind: str) -> list[Any]:
    """Return the entries of a kind that neither a package nor a plug-in has registered."""
    entries = _registries.get(kind)
    if entries is None:  # nothing has imported it
        return []
    tops = {name: home.partition(".")[0] for name, home in entries._homes.items()}
    foreign = {name: top for name, top in tops.items() if top != "fedray"}
    installed = {p.module.partition(".")[0] for p in installed_points()} if foreign else set()
    return [
        entries._entries[name]
        for name, top in foreign.items()
        if top not in installed and name in entries._entries
    ]


def summary_of(entry: Any) -> str:
    """Return an entry's `summary`, or the first line of its docstring, without the full stop."""
    summary: str | None = getattr(entry, "summary", None)
    text = summary or inspect.getdoc(entry if inspect.isclass(entry) else type(entry)) or ""
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")


def _modules_below(folder: Path, package: str) -> Iterable[str]:
    for module in sorted(pkgutil.iter_modules([str(folder)]), key=lambda module: module.name):
        if module.ispkg:
            yield from _modules_below(folder / module.name, f"{package}.{module.name}")
        elif not module.name.startswith("__"):
            yield f"{package}.{module.name}"


def _is_reloaded(other: Any, entry: Any, in_cells: bool = False) -> bool:
    """Return True if two entries are one, whose module may be imported twice.

    Objects, unlike classes, have no names of their code: those of cells replace each other.
    """
    if not (inspect.isclass(entry) and inspect.isclass(other)):
        return bool(other == entry) or (in_cells and type(other) is type(entry))
    files = [
        getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
        for cls in (entry, other)
    ]
    return other.__qualname__ == entry.__qualname__ and files[0] == files[1]
