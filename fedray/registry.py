"""Everything that is chosen by name: one registry for each kind of thing.

An entry is a class or an object with a `name`, typed parameters (`Params`, or `HParams` of a
method) where it has any, and a docstring whose first line says what it is. A file that registers
one entry is enough to add it: the command that lists entries, the reference page, validation and
the nearest-name suggestion follow.

The file may be one of this package, a plug-in (`fedray.plugins`), whose entries are there while it
is in use, or one of an installed package with an entry point in the group `fedray.plugins`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from fedray.errors import PLUGIN_MARK, UserError, named, nearest
from fedray.files import LONGEST_NAME, check_name

HOMES = MappingProxyType(
    {
        "algorithm": "fedray.core.algorithm",
        "optimizer": "fedray.core.optimizers",
        "learning rate schedule": "fedray.core.schedules",
        "architecture": "fedray.models.architectures",
        "model group": "fedray.models.groups",
        "CLIP": "fedray.models.clip.sources",
        "data source": "fedray.data.sources",
        "partition": "fedray.data.partitions",
        "data evolution": "fedray.data.evolution",
        "augmentation": "fedray.data.augment",
        "text encoder": "fedray.language.encoders.base",
        "text style": "fedray.language.styles",
        "metric": "fedray.evaluation.metrics",
    }
)
"""The module that holds the registry of each kind."""

GROUP = "fedray.plugins"
"""The entry points of installed packages that register something."""


class Named(Protocol):
    """What can be registered."""

    @property
    def name(self) -> str:
        """What the experiment calls it."""


T = TypeVar("T")
_registries: dict[str, Registry[Any]] = {}
_active: tuple[str, ...] = ()
"""The keys of the plug-ins whose entries are there."""
_installed: set[str] = set()
"""The entry points that this process has loaded."""


class Registry(Generic[T]):
    """The entries of one kind.

    An entry called x is looked for in a module x of the package first; only when it is not there,
    or all names are asked for, is every module imported.

    Args:
        kind: what an entry is called in error messages; a key of `HOMES`, or a kind of one's own.
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
            ValueError: when it has no name, one that no file can have, or another entry's.
        """
        name = getattr(entry, "name", None)
        if not isinstance(name, str):
            raise ValueError(f"{entry!r} is to be a {self.kind}, but has no name")
        try:
            check_name(name)
        except UserError as error:
            raise ValueError(f"the {self.kind} {entry!r} cannot be called so: {error}") from None
        home, plugin = _who_registers()
        there = self._entries if plugin is None else self._plugged.setdefault(plugin, {})
        other = there.get(name)
        if other is not None and not _is_reloaded(other, entry):
            raise ValueError(f"two {self.kind}s are called '{name}': {other!r} and {entry!r}")
        there[name] = entry
        if plugin is None:
            self._homes[name] = home
        return entry

    def get(self, name: str) -> T:
        """Return the entry called `name`.

        Raises:
            UserError: when there is none; it names the nearest one.
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
            raise unknown(self.kind, name, self.names())
        return self._entries[name]

    def names(self) -> list[str]:
        """Every name that is there, sorted."""
        return sorted(self._all())

    def entries(self) -> list[T]:
        """Every entry, sorted by name."""
        return [entry for _, entry in sorted(self._all().items())]

    def home(self, name: str) -> str:
        """The module that registered an entry; "" of a plug-in's, and where there is none."""
        return self._homes.get(name, "")

    def plugged(self, plugin: str) -> Mapping[str, T]:
        """What a plug-in has registered, by name.

        Args:
            plugin: its key.
        """
        return self._plugged.get(plugin, {})

    def forget(self, plugin: str) -> None:
        """Drop what a plug-in has registered that did not import."""
        self._plugged.pop(plugin, None)

    def check_taken(self, plugins: Mapping[str, str]) -> None:
        """Refuse plug-ins that register a name that is there without them, or two the same.

        Args:
            plugins: what messages call them, by their keys.

        Raises:
            UserError: naming the plug-in.
        """
        owner: dict[str, str] = {}
        for plugin, label in plugins.items():
            for name, entry in self.plugged(plugin).items():
                self._scan()
                other = self._entries.get(name)
                if other is not None and not _is_reloaded(other, entry):
                    whose = self._homes.get(name) or "fedray"
                elif owner.setdefault(name, label) != label:
                    whose = owner[name]
                else:
                    continue
                raise UserError(
                    f"plug-in {label} registers the {self.kind} '{name}', which there is already "
                    f"(in {whose}); give yours another name"
                )

    def _all(self) -> dict[str, T]:
        self._scan()
        found = dict(self._entries)
        for plugin in _active:
            found |= self._plugged.get(plugin, {})
        return found

    def _modules(self) -> Iterable[str]:
        """The package's modules, those of its folders too; none of them is imported."""
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
    """The registry of a kind, for whoever knows the kind by name alone.

    Raises:
        KeyError: when there is no such kind.
    """
    importlib.import_module(HOMES[kind])
    return _registries[kind]


def activate(plugins: Iterable[str]) -> None:
    """Have the entries of these plug-ins, by their keys, and of no others."""
    global _active
    _active = tuple(plugins)


def unknown(kind: str, name: str, valid: Collection[str]) -> UserError:
    """That there is nothing of a name, which name is near, and how one's own is found."""
    own = "If it is your own, give its file with --plugin."
    if _active and not any(each.plugged(plugin) for each in _kinds(kind) for plugin in _active):
        own = f"The plug-ins that were given register no {kind}."
    return UserError(f"there is no {kind} '{name[:LONGEST_NAME]}'.{nearest(name, valid)} {own}")


def plugged(plugins: Iterable[str]) -> dict[str, set[str]]:
    """The names that plug-ins have registered, by kind; without kinds of which there is none.

    Args:
        plugins: their keys.
    """
    keys = list(plugins)
    found = {
        kind: {name for key in keys for name in each.plugged(key)}
        for kind, each in _registries.items()
    }
    return {kind: names for kind, names in found.items() if names}


def _kinds(kinds: str) -> list[Registry[Any]]:
    """The registries of one kind, or of several, "model group or architecture"."""
    return [_registries[kind] for kind in kinds.split(" or ") if kind in _registries]


def check_taken(plugins: Mapping[str, str]) -> None:
    """`Registry.check_taken` of every registry."""
    for each in list(_registries.values()):
        each.check_taken(plugins)


def forget(plugin: str) -> None:
    """`Registry.forget` of every registry."""
    for each in _registries.values():
        each.forget(plugin)


def installed_points() -> tuple[EntryPoint, ...]:
    """The entry points of installed packages, looked for once: it takes a tenth of a second."""
    return _points(tuple(sys.path))


@cache
def _points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _load_installed() -> None:
    """Import what installed packages name in `GROUP`, once.

    Raises:
        UserError: when one does not import.
    """
    for point in installed_points():
        if point.value in _installed:
            continue
        _installed.add(point.value)  # before: what it imports may ask for names
        try:
            point.load()
        except Exception as error:
            _installed.discard(point.value)
            package = "" if point.dist is None else f" of the package {point.dist.name}"
            raise UserError(
                f"the installed plug-in {point.value}{package} does not import: {named(error)}; "
                "mend or uninstall it"
            ) from None


def _who_registers() -> tuple[str, str | None]:
    """The module that is being imported, innermost, and the plug-in that it is of."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__", ""), frame.f_globals.get(PLUGIN_MARK)


def parameters_of(entry: Any) -> Any:
    """The typed parameters of an entry, a pydantic model; None where it has none."""
    return getattr(entry, "HParams", None) or getattr(entry, "Params", None)


def summary_of(entry: Any) -> str:
    """The first line of an entry's docstring, or its `summary`, without the full stop."""
    own: str | None = getattr(entry, "summary", None)
    text = own or inspect.getdoc(entry if inspect.isclass(entry) else type(entry)) or ""
    return text.split("\n\n")[0].replace("\n", " ").rstrip(".")


def _modules_below(folder: Path, package: str) -> Iterable[str]:
    for found in sorted(pkgutil.iter_modules([str(folder)]), key=lambda module: module.name):
        if found.ispkg:
            yield from _modules_below(folder / found.name, f"{package}.{found.name}")
        elif not found.name.startswith("__"):
            yield f"{package}.{found.name}"


def _is_reloaded(other: Any, entry: Any) -> bool:
    """Whether two entries are one thing whose module was imported twice."""
    if inspect.isclass(entry) and inspect.isclass(other):
        return other.__qualname__ == entry.__qualname__ and _file(other) == _file(entry)
    return bool(other == entry)


def _file(entry: type) -> str:
    """The file that a class comes from; its module, where that has no file."""
    return getattr(sys.modules.get(entry.__module__), "__file__", None) or entry.__module__
