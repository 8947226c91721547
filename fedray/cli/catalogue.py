"""Entries of the registries and keys of an experiment, for listings and the reference page.

Calling these functions imports every module that registers something.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial, reduce
from operator import or_
from pathlib import Path
from textwrap import dedent
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import fedray
from fedray.cli.listing import KINDS, Entry, Parameter
from fedray.config import Component, Experiment, Frozen
from fedray.core import Algorithm
from fedray.core.stacked import refusal
from fedray.records import Metric
from fedray.registry import parameters_of, registry, summary_of


def entries(kind: str) -> list[Entry]:
    """Return all entries of a listing, sorted by name.

    Args:
        kind: a key of `KINDS`.
    """
    return [_entry(entry) for entry in registry(KINDS[kind]).entries()]


def keys() -> list[Entry]:
    """Return every key of an experiment in its order, without keys of components."""
    return list(_keys(Experiment, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Entry]:
    for found in parameters(model):
        key, inner = f"{prefix}{found.name}", model.model_fields[found.name].annotation
        if inspect.isclass(inner) and issubclass(inner, Frozen):
            yield from _keys(inner, f"{key}.")
            continue
        told = replace(found, name=key, text="")
        if inner is Component:
            told = replace(told, type="name", default=found.default[6:].partition("'")[0])
        text, file = found.text.rstrip("."), "config/experiment.py"
        yield Entry(key, key, text, "-", "", file, (told,))


def _entry(entry: Any) -> Entry:
    params = parameters_of(entry)
    return Entry(
        name=entry.name,
        title=getattr(entry, "title", entry.name),
        summary=summary_of(entry),
        paper=getattr(entry, "paper", "-"),
        travels=getattr(entry, "travels", ""),
        file=_file(entry),
        parameters=tuple(parameters(params)) if params is not None else (),
        gives=tuple(
            _meaning(metric, alone=metric.name in getattr(entry, "only_on_test", ()))
            for metric in getattr(entry, "metrics", ())
        ),
        stacked=(refusal(entry) or "yes") if is_method(entry) else "",
    )


def is_method(entry: Any) -> bool:
    """Return True for an entry of the registry of methods."""
    return inspect.isclass(entry) and issubclass(entry, Algorithm)


def _meaning(metric: Metric, *, alone: bool) -> str:
    """Return a metric's name with its unit, direction and images.

    On validation images as `validation/NAME`, unless it exists on the test `alone`.
    """
    better = f"{metric.direction} is better" if metric.direction else "no direction"
    on = "test and validation" if metric.on == "test" and not alone else metric.on
    return f"{metric.name} ({', '.join(filter(None, (metric.unit, better, on)))})"


def _file(entry: Any) -> str:
    """Return the file below the package that defines an entry; "" if it is elsewhere."""
    defined = entry if inspect.isclass(entry) else getattr(entry, "make", type(entry))
    while isinstance(defined, partial):
        defined = defined.func
    found = getattr(inspect.getmodule(defined), "__file__", None)
    root = Path(fedray.__file__).parent
    if found is None or not Path(found).is_relative_to(root):
        return ""
    return Path(found).relative_to(root).as_posix()


def parameters(params: type[BaseModel]) -> Iterator[Parameter]:
    """Yield the fields of a model as parameters."""
    texts = parameter_texts(params)
    for name, field in params.model_fields.items():
        yield Parameter(
            name=field.alias or name,
            type=_type(field),
            default="" if field.is_required() else _default(field),
            bounds=", ".join(_bounds(field)),
            text=texts.get(name, ""),
        )


@cache
def parameter_texts(params: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of a model and its bases."""
    found: dict[str, str] = {}
    for owner in reversed(params.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        try:
            source = inspect.getsource(owner)
        except OSError:  # joined from its bases
            continue
        body = ast.parse(dedent(source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            text = _literal(after)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text:
                found[field.target.id] = " ".join(text.split())
    return found


def _literal(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return None


def _type(field: FieldInfo) -> str:
    text = inspect.formatannotation(_without_metadata(field.annotation))
    return re.sub(r"\b(typing|fedray|pydantic)\.(\w+\.)*", "", text)


def _without_metadata(annotation: Any) -> Any:
    """Return a type whose parts are not annotated with bounds or checks."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _without_metadata(parts[0])
    if not parts or origin is Literal:
        return annotation
    plain = tuple(_without_metadata(part) for part in parts)
    return reduce(or_, plain) if origin is UnionType else origin[plain]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _bounds(field: FieldInfo) -> Iterator[str]:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    for constraint in field.metadata:
        for name, sign in signs.items():
            if (bound := getattr(constraint, name, None)) is not None:
                yield f"{sign} {bound}"
