"""Messages about invalid data: one clause for each mistake, with its key and the value found.

Example: participation: input should be less than or equal to 1, found 5; unknown key 'lamda' in
algorithm. Did you mean 'lambda'?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fedray.base.errors import nearest, shown
from fedray.storage.files import places_of

CHOOSES: Mapping[str, str] = MappingProxyType(
    {
        "data": "data.source",
        "model": "model.group",
        "text": "text.encoder",
        "report": "report.select",
    }
)
"""The key that is probably meant if a section is set to a plain value, by section."""

INNER = "component"
"""Type of pydantic's error for a component whose parameters are invalid."""


def mistakes(model: type[BaseModel], tree: Any, error: ValidationError, prefix: str) -> str:
    """Return a sentence that names every mistake.

    Args:
        model: the model of which the data is no valid instance.
        tree: the data.
        error: pydantic's error.
        prefix: the dotted key of the data in the experiment.
    """
    clauses: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        places = list(places_of(tree, detail))
        key = ".".join([prefix, *places] if prefix else places)
        clause = _clause(model, key, places, detail)
        if key in clauses:  # pydantic reports one error for each member of a union
            clause = f"{clauses[key]}, or {clause.removeprefix(f'{key}: ')}"
        clauses[key] = clause
    *first, last = clauses.values()
    return "; ".join([*(clause.rstrip(".") for clause in first), last])


def _clause(model: type[BaseModel], key: str, places: Sequence[str], error: ErrorDetails) -> str:
    if error["type"] == INNER:
        inner, params, found = error["ctx"]["parts"]
        return mistakes(inner, params, found, key)
    if error["type"] == "extra_forbidden":
        return _unknown(key, _owner(model, places), model)
    if error["type"] == "missing":
        return f"{key} is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if error["type"] == "value_error":
        return f"{key}: {message}" if key else message
    content = error["input"]
    if error["type"] == "model_type":
        value = content if isinstance(content, str) else "..."
        cure = f"; write {CHOOSES[key]}={value}" if key in CHOOSES else ""
        return f"{key or 'it'} has keys of its own, found {_as_yaml(content)}{cure}"
    return f"{key or 'it'}: {message}, found {_as_yaml(content)}"


def _as_yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown(value)


def _owner(model: type[BaseModel], places: Sequence[str]) -> type[BaseModel]:
    """Return the innermost model that contains a place."""
    for part in places[:-1]:
        if part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation is or contains; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = map(_model_in, get_args(annotation))
    return next((model for model in inner if model is not None), None)


def _unknown(key: str, owner: type[BaseModel], root: type[BaseModel]) -> str:
    """Return a clause about an unknown key of `owner`; suggest a valid key of `root`."""
    *above, name = key.split(".")
    valid = [field.alias or field_name for field_name, field in owner.model_fields.items()]
    if not valid and key_for(name) in (None, key):
        where = ".".join(above)
        return f"unknown key '{name}' in {where}, which has no keys of its own; leave it out"
    meant = key_for(name) or _elsewhere(name, root)
    meant = meant.removeprefix(f"{'.'.join(above)}.") if meant and meant != key else None
    near = f" Did you mean '{meant}'?" if meant else nearest(name, valid)
    return f"unknown key '{name}' in {'.'.join(above) or 'the experiment'}.{near}"


@cache
def synonyms() -> Mapping[str, list[str]]:
    """Return the names of keys in other tools and papers, by key (synonyms.yaml)."""
    text = Path(__file__).with_name("synonyms.yaml").read_text(encoding="utf-8")
    words: dict[str, list[str]] = yaml.safe_load(text)
    return words


def key_for(word: str) -> str | None:
    """Return the key with the synonym `word`, ignoring case, dashes and underscores; or None."""
    word = word.lower().replace("-", "_")
    return next((key for key, words in synonyms().items() if word in words), None)


def _elsewhere(name: str, root: type[BaseModel]) -> str | None:
    """Return the dotted key of the only section that has a key of this name; else None."""
    keys = [
        f"{section}.{name}"
        for section, field in root.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and name in field.annotation.model_fields
    ]
    return keys[0] if len(keys) == 1 else None
