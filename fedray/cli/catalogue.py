"""Registered names and experiment keys, read from the code for `fedray ls` and reference pages.

Importing this module imports PyTorch, and calling it every module that registers a name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import fedray
from fedray.config import Component, Experiment, Frozen
from fedray.config.registry import parameters_of, registry, summary_of
from fedray.core import Algorithm
from fedray.core.stacked import refusal
from fedray.storage.metric import Metric

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "algorithms": "algorithm",
        "optimizers": "optimizer",
        "schedules": "learning rate schedule",
        "architectures": "architecture",
        "groups": "model group",
        "clips": "CLIP",
        "sources": "data source",
        "partitions": "partition",
        "evolutions": "data evolution",
        "publics": "public data",
        "augmentations": "augmentation",
        "encoders": "text encoder",
        "styles": "text style",
        "metrics": "metric",
    }
)
"""The listings and the kind of registry behind each."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry.

    Attributes:
        name: the key in an experiment file.
        type: the Python type.
        default: the default as in YAML; "" if the parameter is required.
        bounds: bounds such as "> 0"; "" without bounds.
        text: the docstring.
    """

    name: str
    type: str
    default: str
    bounds: str
    text: str


@dataclass(frozen=True)
class Entry:
    """A registered name: a method, model, data source, metric and so on.

    Attributes:
        name: the name in an experiment file.
        title: the name in the paper, or `name`.
        summary: one line.
        paper: authors, venue, arXiv number; "-" without a paper.
        travels: what a method sends; "" for other kinds.
        file: the source file, relative to the package; "" for plug-ins.
        parameters: its typed parameters.
        gives: the numbers that a metric computes, with their meaning; empty for other kinds.
        stacked: "yes", or why a method does not support stacked clients; "" for other kinds.
    """

    name: str
    title: str
    summary: str
    paper: str
    travels: str
    file: str
    parameters: tuple[Parameter, ...]
    gives: tuple[str, ...] = ()
    stacked: str = ""


FAMILIES = ("text_guided", "prototypes", "averaging", "personalised", "prompts", "distillation")
"""Packages of methods in the order of listings."""


def by_family(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Group methods by family, under the first line of the family's docstring; plug-ins last."""
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.file.split("/")[1] if entry.file else "", []).append(entry)
    return {_heading(name): families[name] for name in (*FAMILIES, "") if name in families}


def _heading(family: str) -> str:
    text = import_module(f"fedray.algorithms.{family}").__doc__ if family else "Plug-ins"
    return (text or family).split("\n")[0].rstrip(".")


def entries(kind: str) -> list[Entry]:
    """Return all entries of a kind (a key of `KINDS`), sorted by name."""
    return [_entry(entry) for entry in registry(KINDS[kind]).entries()]


def experiment_keys(model: type[BaseModel] = Experiment, prefix: str = "") -> list[Entry]:
    """Return every key of an experiment in order, without the parameters of components."""
    keys = []
    for parameter in parameters(model):
        key, inner = f"{prefix}{parameter.name}", model.model_fields[parameter.name].annotation
        if inspect.isclass(inner) and issubclass(inner, Frozen):
            keys += experiment_keys(inner, f"{key}.")
            continue
        kind = "name" if inner is Component else parameter.type
        listed = replace(parameter, name=key, text="", type=kind)
        text, file = parameter.text.rstrip("."), "config/experiment.py"
        keys.append(Entry(key, key, text, "-", "", file, (listed,)))
    return keys


def _entry(entry: Any) -> Entry:
    params = parameters_of(entry)
    return Entry(
        name=entry.name,
        title=getattr(entry, "title", entry.name),
        summary=summary_of(entry),
        paper=getattr(entry, "paper", "-"),
        travels=_travels(entry) if is_method(entry) else "",
        file=_file(entry),
        parameters=tuple(parameters(params)) if params is not None else (),
        gives=tuple(
            _meaning(metric, alone=metric.name in getattr(entry, "only_on_test", ()))
            for metric in getattr(entry, "metrics", ())
        ),
        stacked=(refusal(entry) or "yes") if is_method(entry) else "",
    )


def is_method(entry: Any) -> bool:
    """Return True if a registry entry is a method."""
    return inspect.isclass(entry) and issubclass(entry, Algorithm)


def _travels(method: type[Algorithm]) -> str:
    """Return the fields of each payload: "up: model, samples; down: model"."""
    payloads = (*method.uploads, *method.downloads)
    return "; ".join(f"{p.place.partition('.')[2]}: {', '.join(p)}" for p in payloads) or "nothing"


def _meaning(metric: Metric, *, alone: bool) -> str:
    """Describe a metric: its name, unit, direction, and the images it is measured on.

    Test metrics are also measured on validation images, unless `alone` is set.
    """
    better = f"{metric.direction} is better" if metric.direction else "no direction"
    on = "test and validation" if metric.on == "test" and not alone else metric.on
    return f"{metric.name} ({', '.join(filter(None, (metric.unit, better, on)))})"


def _file(entry: Any) -> str:
    """Return the path within the package of the file that defines an entry; "" for plug-ins."""
    defined = entry if inspect.isclass(entry) else getattr(entry, "make", type(entry))
    while isinstance(defined, partial):
        defined = defined.func
    file = getattr(inspect.getmodule(defined), "__file__", None)
    root = Path(fedray.__file__).parent
    if file is None or not Path(file).is_relative_to(root):
        return ""
    return Path(file).relative_to(root).as_posix()


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
    """Return the docstrings of the fields of a model and its bases, by field name."""
    texts: dict[str, str] = {}
    for owner in reversed(params.__mro__):
        if not issubclass(owner, BaseModel) or owner is BaseModel:
            continue
        try:
            source = inspect.getsource(owner)
        except OSError:  # a class created at run time has no source
            continue
        body = ast.parse(dedent(source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _type(field: FieldInfo) -> str:
    text = inspect.formatannotation(_without_metadata(field.annotation))
    text = re.sub(r"\b(typing|fedray|pydantic)\.(\w+\.)*", "", text)
    return re.sub(r"Literal\[(.*?)\]", lambda values: values[1].replace(", ", " | "), text)


def _without_metadata(annotation: Any) -> Any:
    """Return a type without the bounds and checks of `Annotated`, at any depth."""
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
                yield f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}"
