"""A hash of what a class or an object computes, for code that no file of the experiment holds.

A method that a script or a notebook registers is in no plug-in, so its code is read from the
objects themselves: functions by bytecode, constants, defaults, closures and the globals that they
name; other values by content. Installed packages count by name only.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import torch
from pydantic import BaseModel

_NAMED = (type, FunctionType, BuiltinFunctionType)
_WITHOUT_EFFECT = frozenset(
    ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__signature__")
)


def fingerprint(entry: Any) -> str:
    """Return a hash of a class or an object that is equal in other processes, too.

    An object whose content cannot be read, such as a lock, equals only itself.
    """
    content = json.dumps(_Description().of(entry))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def is_installed(module: str) -> bool:
    """Return True if a module belongs to this package, to Python or to an installed package."""
    top = module.partition(".")[0]
    if top == "fedray" or top in sys.stdlib_module_names:
        return True
    if module == "__main__":  # of a notebook, whose file may be Jupyter's
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(folder in Path(file).parents for folder in _site_folders())


@cache
def _site_folders() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))


class _Description:
    """Describes values as JSON; a value that was described before is a number."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # ids stay unique only while their objects exist

    def of(self, value: Any) -> Any:
        """Return the description of any value."""
        if value is None or isinstance(value, bool | int | float | complex | str):
            return repr(value)
        if isinstance(value, bytes | bytearray):
            return ["bytes", hashlib.sha256(value).hexdigest()]
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return [self.of(item) for item in value]
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, set | frozenset):
            return ["set", *sorted(json.dumps(_Description().of(item)) for item in value)]
        if isinstance(value, Mapping) and not hasattr(value, "__dict__"):
            return ["dict", [[self.of(key), self.of(item)] for key, item in value.items()]]
        return [type(value).__qualname__, *self._parts(value)]

    def _parts(self, value: Any) -> Iterator[Any]:
        """Yield the descriptions of the parts of a code object, a class or an instance."""
        if isinstance(value, CodeType):
            names = value.co_names, value.co_varnames, value.co_freevars
            yield [value.co_code.hex(), *names, value.co_flags]
            yield self.of(value.co_consts)
        elif isinstance(value, _NAMED) and is_installed(str(value.__module__)):
            yield [value.__module__, value.__qualname__]
        elif isinstance(value, FunctionType):
            yield from map(self.of, (value.__code__, value.__defaults__, value.__kwdefaults__))
            known = [name for name in _globals_of(value.__code__) if name in value.__globals__]
            yield [[name, self.of(value.__globals__[name])] for name in known]
            yield [self.of(_content(cell)) for cell in value.__closure__ or ()]
        elif isinstance(value, BuiltinFunctionType):  # perhaps of an extension beside the script
            yield [value.__qualname__, self.of(sys.modules.get(str(value.__module__)))]
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, ModuleType):
            yield value.__name__
            if not is_installed(value.__name__):
                yield _file_hash(value)
                kinds = type, FunctionType, ModuleType
                inner = [part for part in vars(value).values() if isinstance(part, kinds)]
                yield [self.of(part) for part in inner]
        else:
            yield from self._of_instance(value)

    def _of_class(self, cls: type) -> Iterator[Any]:
        yield [cls.__qualname__, *map(self.of, cls.__bases__)]
        if issubclass(cls, BaseModel):
            yield [
                [name, str(field.annotation), self.of(field.default), self.of(field.metadata)]
                for name, field in cls.model_fields.items()
            ]
        for name, part in sorted(vars(cls).items()):
            generated = name.startswith(("_abc_", "__pydantic", "__static", "__class_getitem"))
            is_slot = isinstance(part, GetSetDescriptorType | MemberDescriptorType)
            if not (name in _WITHOUT_EFFECT or generated or is_slot):
                yield [name, self.of(part)]

    def _of_instance(self, value: Any) -> Iterator[Any]:
        yield self.of(type(value))
        if isinstance(value, torch.Tensor):
            content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
            yield [str(value.dtype), list(value.shape), self.of(content.numpy().tobytes())]
        elif isinstance(value, property | cached_property | staticmethod | classmethod):
            names = "fget", "fset", "func", "__func__"
            yield [self.of(getattr(value, name, None)) for name in names]
        elif hasattr(value, "__wrapped__"):  # `functools.cache`
            yield self.of(value.__wrapped__)
        else:
            try:
                yield self.of(list(value.__reduce_ex__(4)))
            except Exception:  # what cannot be copied, such as a lock, refuses in its own way
                yield [os.getpid(), id(value)]


def _globals_of(code: CodeType) -> list[str]:
    """Return the names of the globals that code reads, with those of functions inside it."""
    inner = [const for const in code.co_consts if inspect.iscode(const)]
    names = {op.argval for op in dis.get_instructions(code) if op.opname == "LOAD_GLOBAL"}
    return sorted(names.union(*map(_globals_of, inner)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # assigned later
        return None


def _file_hash(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
