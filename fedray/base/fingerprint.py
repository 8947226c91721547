"""A hash of what a class or an object computes, for code that no file of the experiment holds.

A method that a script or a notebook registers is in no plug-in, so its code is read from the
objects themselves. Installed packages count by name only.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pydantic import BaseModel

from fedray.base.imports import site_folders

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def fingerprint(entry: Any) -> str:
    """Return a hash of a class or an object that is equal in other processes, too.

    It covers the bytecode of functions, and all that they name, recursively. An object whose
    content cannot be read, such as a lock, equals only itself.
    """
    texts: list[str] = []
    _describe(entry, texts, [])
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _describe(value: Any, texts: list[str], seen: list[Any]) -> None:
    """Add the texts of a value, and of all that it refers to."""
    value = getattr(value, "__func__", value)  # of a class method
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, _PLAIN):
        texts.append(repr(value))
    elif not any(value is other for other in seen):
        seen.append(value)
        texts.append(f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}")
        for part in _parts_of(value):
            _describe(part, texts, seen)


def _parts_of(value: Any) -> Iterator[Any]:
    if isinstance(value, type | FunctionType | ModuleType):
        module = value.__name__ if isinstance(value, ModuleType) else str(value.__module__)
        yield module
        if _is_packaged(module):
            return
    if isinstance(value, ModuleType):
        yield Path(value.__file__).read_bytes() if value.__file__ else id(value)
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_names, value.co_consts)
    elif isinstance(value, FunctionType):
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        yield [cell.cell_contents for cell in value.__closure__ or ()]
        yield {name: value.__globals__.get(name) for name in _names_in(value.__code__)}
    elif isinstance(value, type):
        yield value.__bases__
        yield {k: v for k, v in vars(value).items() if not k.startswith(("__", "_abc_"))}
        if issubclass(value, BaseModel):
            yield repr(value.model_fields)
        elif is_dataclass(value):
            yield [(field.name, str(field.type), field.metadata) for field in fields(value)]
    elif isinstance(value, property | cached_property):
        yield getattr(value, "fget", None) or value.func  # type: ignore[union-attr]
    elif isinstance(value, Mapping):
        yield from (item for pair in value.items() for item in pair)
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, set | frozenset):
        yield from sorted(map(repr, value))
    elif hasattr(value, "tolist"):  # a tensor or an array
        yield from (str(value.dtype), value.tolist())
    else:
        yield type(value)
        yield vars(value) if hasattr(value, "__dict__") else repr(value)


def _names_in(code: CodeType) -> list[str]:
    """Return the names that code and the functions inside it use."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return sorted({*code.co_names}.union(*map(_names_in, inner)))


def _is_packaged(module: str) -> bool:
    """Return True if a module belongs to fedray, to Python or to an installed package."""
    top = module.partition(".")[0]
    if module == "__main__" or top == "fedray" or top in sys.stdlib_module_names:
        return module != "__main__"  # of a notebook, whose file may be Jupyter's
    file = getattr(sys.modules.get(module, sys.modules.get(top)), "__file__", None)
    return file is not None and any(Path(file).is_relative_to(f) for f in site_folders())
