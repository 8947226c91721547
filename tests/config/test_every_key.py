"""Every key and parameter refuses values of another type or beyond its bounds, and names itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab import refused
from pydantic import BaseModel

from fedray.base.errors import UserError
from fedray.config import COMPONENTS, Component, Experiment
from fedray.config.registry import parameters_of, registry
from fedray.runtime.resolve import resolve

NEVER = ("{zzz: 1}", "[1, {", "")
"""Values that no key takes."""
NO_NUMBER = ("true", "abc", "'7'", "''", ".nan", ".inf", "1e300", "1:30", "2026-11-22", "[]")
NO_SWITCH = ("1", "abc", "yes", "[]")
NO_TEXT = ("3", "true", "2.5")


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of a typed model with its field, components left out."""
    for name, field in model.model_fields.items():
        key, kind = f"{prefix}{field.alias or name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Component:
            yield from keys(kind, f"{key}.")
        elif kind is not Component:
            yield key, field


def plain_types(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of."""
    return {kind for part in get_args(annotation) for kind in plain_types(part)} or {annotation}


def wrong_values(field: Any) -> Iterator[str]:
    """Yield values that a field must refuse, by its type and bounds."""
    kinds = plain_types(field.annotation)
    if "Mapping" not in str(field.annotation) and "dict" not in str(field.annotation):
        yield from NEVER
    if NoneType not in get_args(field.annotation):
        yield "null"
    if bool in kinds:
        yield from NO_SWITCH
    elif {int, float} & kinds:
        yield from NO_NUMBER if str not in kinds else ()
        yield from ("2.5",) if float not in kinds else ()
        for bound in field.metadata:
            for name, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                if (limit := getattr(bound, name, None)) is not None:
                    yield repr(limit + step * max(1, abs(limit)))
    elif "Literal" in str(field.annotation):
        yield "zzz"
    else:
        yield from NO_TEXT


def cases() -> list[tuple[tuple[str, ...], str, str]]:
    """Return (choice of the component, key, wrong value) for everything that can be set."""
    plain = [(key, field) for key, field in keys(Experiment) if key != "plugins"]
    found = [((), key, value) for key, field in plain for value in wrong_values(field)]
    for key, kind in COMPONENTS.items():
        for entry in registry(kind).entries():
            parameters = parameters_of(entry)
            for name, field in keys(parameters) if parameters is not None else ():
                choice = (f"{key}={entry.name}",)
                found += [(choice, f"{key}.{name}", value) for value in wrong_values(field)]
    return found


CASES = cases()


def test_all_keys_are_tried():
    tried = {key for _, key, _ in CASES}
    assert {"rounds", "data.clients", "algorithm.lambda", "algorithm.tau_moon"} <= tried
    assert {"data.partition.alpha", "data.augment.padding", "text.encoder.pooling"} <= tried
    assert len(CASES) > 1500


@settings(max_examples=300)
@given(case=st.sampled_from(CASES))
def test_a_wrong_value_is_refused_with_its_key(case):
    choice, key, value = case
    with pytest.raises(UserError) as refused:
        resolve("fedavg_digits", [*choice, f"{key}={value}"])
    assert key.rpartition(".")[2] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_pair_is_refused_with_its_key():
    refused(lambda: resolve("fedavg_digits", ["optimizer=adam", "optimizer.betas=[]"]), "betas")
