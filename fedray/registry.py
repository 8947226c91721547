"""Everything that is chosen by name: one registry for each kind of thing.

An entry is a class or an object with a `name`, typed parameters if it has any (`Params`, or
`HParams` of a method), and a docstring whose first line describes it. One file that registers an
entry is enough to add it to listings, the reference page, validation and name suggestions.

The file belongs to this package, to a plug-in (`fedray.plugins`), whose entries are available while
it is used, or to an installed package with an entry point in the group `fedray.plugins`.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

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


T = TypeVar("T")
_registries: dict[str, Registry[Any]] = {}
_active: tuple[str, ...] = ()
"""The keys of the plug-ins whose entries are available."""
_installed: set[str] = set()
"""The entry points that this process has loaded."""


class Registry(Generic[T]):
    """The entries of one kind.

    An entry x is looked for in a module x of the package first; all modules are imported if it is
    not there, or if all names are requested.

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
            ValueError: if it has no name, one that no file can have, or another entry's.
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
        """Return the entry called `name`, in any spelling: FedProto is fedproto.

        Raises:
            UserError: if there is none, with the nearest name.
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
            meant = [each for each in self.entries() if _spelled(name) in _spellings(each)]
            if len(meant) != 1 or "/" in name:
                raise unknown(self.kind, name, self.names())
            return meant[0]
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._all())

    def entries(self) -> list[T]:
        """Return all entries, sorted by name."""
        return [entry for _, entry in sorted(self._all().items())]

    def home(self, name: str) -> str:
        """Return the module that registered an entry; "" for a plug-in's or an unknown one."""
        return self._homes.get(name, "")

    def check_taken(self, plugins: Mapping[str, str]) -> None:
        """Refuse plug-ins that register a name of this package, or two the same name."""
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
                        f"plug-in {label} registers the {self.kind} '{name}', which there is "
                        f"already (in {home}); give yours another name"
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


def activate(plugins: Iterable[str]) -> None:
    """Make the entries of these plug-ins available, by their keys, and those of no others."""
    global _active
    _active = tuple(plugins)


def registered_by(plugin: str) -> dict[str, list[str]]:
    """Return the names that the plug-in with this key has registered in this process, by kind."""
    names = {kind: sorted(each._plugged.get(plugin, ())) for kind, each in _registries.items()}
    return {kind: registered for kind, registered in names.items() if registered}


def _spelled(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return "".join(char for char in name.casefold() if char.isalnum() or char == "+")


def _spellings(entry: Any) -> set[str]:
    return {_spelled(entry.name), _spelled(str(getattr(entry, "title", entry.name)))}


def unknown(kind: str, name: str, valid: Collection[str]) -> UserError:
    """Return the error for an unknown name: the nearest name, and how to add one's own entry.

    Args:
        kind: one kind, or several: "model group or architecture".
        name: the unknown name.
        valid: the known names.
    """
    own = "If it is your own, give its file with --plugin."
    registered = set().union(*map(registered_by, _active))
    if _active and not registered & set(kind.split(" or ")):
        own = f"The plug-ins that were given register no {kind}."
    return UserError(f"there is no {kind} '{name[:LONGEST_NAME]}'.{nearest(name, valid)} {own}")


def check_taken(plugins: Mapping[str, str]) -> None:
    """Call `Registry.check_taken` of every registry."""
    for each in list(_registries.values()):
        each.check_taken(plugins)


def forget(plugin: str) -> None:
    """Drop everything that the plug-in with this key has registered."""
    for each in _registries.values():
        each._plugged.pop(plugin, None)


def installed_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages; searched once, which takes 0.1 s."""
    return _points(tuple(sys.path))


@cache
def _points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _load_installed() -> None:
    """Import what installed packages name in `GROUP`, once."""
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
    """Return the innermost module that is being imported, and the key of its plug-in or None."""
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__", ""), frame.f_globals.get(PLUGIN_MARK)


def parameters_of(entry: Any) -> Any:
    """Return the pydantic model of an entry's parameters; None if it has none."""
    return getattr(entry, "HParams", None) or getattr(entry, "Params", None)


def summary_of(entry: Any) -> str:
    """Return an entry's `summary`, or the first line of its docstring, without the full stop."""
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
    """Return True if two entries are one object whose module was imported twice."""
    if not (inspect.isclass(entry) and inspect.isclass(other)):
        return bool(other == entry)
    files = [
        getattr(sys.modules.get(each.__module__), "__file__", None) or each.__module__
        for each in (entry, other)
    ]
    return other.__qualname__ == entry.__qualname__ and files[0] == files[1]
