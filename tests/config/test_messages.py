"""Invalid data: every mistake with its key and what was found there."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from lab import refused
from pydantic import Field

from fedray.config import Chosen, Component, Experiment, Frozen, default_entry, load_experiment
from fedray.config.files import COMPONENTS
from fedray.config.messages import CHOOSES, synonyms
from fedray.config.registry import parameters_of, registry
from fedray.config.schema import validate


class Inner(Frozen):
    size: int


class Whole(Frozen):
    count: int = Field(1, ge=1, le=9)
    share: float = Field(1, gt=0, le=1)
    on: bool = False
    text: str = ""
    which: Literal["a", "b", "c"] = "a"
    many: tuple[int, ...] | str = ()
    chosen: Annotated[Component, Chosen("partition")] = default_entry("iid")
    inner: Inner = Inner(size=1)
    lam: float = Field(0, ge=0, alias="lambda")


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"count": 0}, ["count", "1", "found 0"]),
        ({"which": "d"}, ["which", "'a', 'b' or 'c'", "'d'"]),
        ({"many": [1, "x"]}, ["many.1", "'x'"]),
        ({"chosen": 3}, ["chosen", "3"]),
        ({"inner": 3}, ["inner", "3"]),
        ({"inner": {"size": "y"}}, ["inner.size", "'y'"]),
        ({"lambda": -1}, ["lambda", "-1"]),
        (
            {"count": 0, "inner": {}, "counts": 1, "on": 1},
            ["count:", "inner.size", "counts", "on:"],
        ),
        ({"count": True}, ["count", "true"]),  # a value of another type is not converted
        ({"count": "3"}, ["count", "'3'"]),
        ({"count": 3.0}, ["count", "3.0"]),
        ({"share": "0.5"}, ["share", "'0.5'"]),
        ({"on": "true"}, ["on", "'true'"]),
        ({"text": 3}, ["text", "3"]),
    ],
)
def test_every_mistake_is_named(tree, named):
    refused(lambda: validate(Whole, tree), *named)


def test_a_whole_number_is_a_number():
    assert validate(Whole, {"share": 1}).share == 1.0


# --- words of neighbouring tools -----------------------------------------------------------------


def exists(key: str) -> bool:
    """Whether a key is one of the experiment, or of some entry that it chooses."""
    owner = next((each for each in COMPONENTS if key.startswith(f"{each}.")), None)
    if owner is not None:
        params = filter(None, map(parameters_of, registry(COMPONENTS[owner]).entries()))
        names = {field.alias or name for p in params for name, field in p.model_fields.items()}
        return key.removeprefix(f"{owner}.") in names
    model = Experiment
    *sections, last = key.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    return last in model.model_fields


def test_words_of_other_tools_lead_to_keys_that_exist():
    assert all(map(exists, [*synonyms(), *CHOOSES.values()]))
    words = [(word, key) for key, words in synonyms().items() for word in words]
    assert len(dict(words)) == len(words)
    for word, key in words:
        assert word not in Experiment.model_fields
        refused(lambda word=word: load_experiment({}, [(word, 1)]), word, f"'{key}'")
