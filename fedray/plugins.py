"""One file adds a method, a partition or a data source: packages whose modules are plug-ins."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import Generic, TypeVar

from fedray.errors import UserError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """The plug-ins of one package.

    A plug-in called x is looked for in module x of the package first; only when it is not there,
    or all names are asked for, is every module imported.

    Args:
        kind: what a plug-in is called in error messages and as a key ("partition").
        package: the dotted name of the package that holds one module per plug-in.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[T]] = {}
        self._scanned = False

    def add(self, cls: type[T]) -> type[T]:
        """Class decorator: register `cls` under its class attribute `name`.

        Raises:
            ValueError: when another class already has this name.
        """
        name: str = cls.name  # type: ignore[attr-defined]
        other = self._classes.get(name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise ValueError(f"two {self.kind}s are called '{name}': {other!r} and {cls!r}")
        self._classes[name] = cls
        return cls

    def get(self, name: str) -> type[T]:
        """Return the class called `name`.

        Raises:
            UserError: when there is none; it names the nearest one.
        """
        if name not in self._classes and name.isidentifier():
            module = f"{self.package}.{name}"
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
        if name not in self._classes:
            self._scan()
        if name not in self._classes:
            raise UserError(f"there is no {self.kind} '{name}'.{nearest(name, self._classes)}")
        return self._classes[name]

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        self._scan()
        return sorted(self._classes)

    def _scan(self) -> None:
        if self._scanned:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._scanned = True
