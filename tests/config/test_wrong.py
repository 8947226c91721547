"""What is wrong with plain data: the key, what is expected there, and what was found."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fedray.config import Component, Frozen
from fedray.config.typed import Seed, validate
from fedray.errors import UserError


class Inner(Frozen):
    size: int


class Whole(Frozen):
    count: int = Field(1, ge=1, le=9)
    share: float = Field(1, gt=0, le=1)
    momentum: float = Field(0, ge=0, lt=1)
    free: float = 0
    low: int | None = Field(None, ge=4)
    inside: Annotated[float, Field(gt=0.5)] | None = None
    seed: Seed = 0
    on: bool = False
    text: str = Field("", max_length=3)
    which: Literal["a", "b", "c"] = "a"
    many: tuple[int, ...] | str = ()
    pair: tuple[str, ...] = Field(("a", "b"), min_length=2)
    of: dict[str, float] = Field(default_factory=dict)
    chosen: Component = Component(name="x")
    inner: Inner = Inner(size=1)
    parts: tuple[Inner, ...] = ()
    lam: float = Field(0, ge=0, alias="lambda")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"count": 0}, "count: expected a whole number from 1 to 9, found 0"),
        ({"count": 1.5}, "count: expected a whole number from 1 to 9, found 1.5"),
        ({"count": None}, "count: expected a whole number from 1 to 9, found null"),
        ({"count": [1]}, "count: expected a whole number from 1 to 9, found [1]"),
        ({"share": 0}, "share: expected a number above 0 and at most 1, found 0"),
        ({"momentum": 1}, "momentum: expected a number of at least 0 and below 1, found 1"),
        ({"free": "x"}, "free: expected a number, found 'x'"),
        ({"free": float("nan")}, "free: expected a finite number, found nan"),
        ({"low": 3}, "low: expected a whole number of at least 4, or null, found 3"),
        ({"inside": 0.5}, "inside: expected a number above 0.5, or null, found 0.5"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, found -1"),
        ({"on": "maybe"}, "on: expected true or false, found 'maybe'"),
        ({"text": 1}, "text: expected a text of at most 3 characters, found 1"),
        ({"text": "long"}, "text: expected a text of at most 3 characters, found 'long'"),
        ({"which": "d"}, "which: expected 'a', 'b' or 'c', found 'd'"),
        ({"many": 3}, "many: expected a list or a text, found 3"),
        ({"many": [1, "x"]}, "many.1: expected a whole number, found 'x'"),
        ({"pair": ["a"]}, "pair: expected a list of at least 2 items, found ['a']"),
        ({"of": 3}, "of: expected a mapping, found 3"),
        ({"of": {"a": "x"}}, "of.a: expected a number, found 'x'"),
        ({"chosen": 3}, "chosen: expected a name, found 3"),
        ({"inner": 3}, "inner has keys of its own, found 3"),
        ({"inner": {}}, "inner.size is missing; expected a whole number"),
        ({"parts": [{"size": "x"}]}, "parts.0.size: expected a whole number, found 'x'"),
        ({"lambda": -1}, "lambda: expected a number of at least 0, found -1"),
    ],
)
def test_what_is_wrong_is_one_sentence(tree: dict[str, Any], said: str):
    with pytest.raises(UserError) as refused:
        validate(Whole, tree)
    assert str(refused.value) == said


def test_the_place_of_the_data_stands_before_the_key():
    with pytest.raises(UserError, match=r"^table x\.inner\.size: expected a whole number, found"):
        validate(Whole, {"inner": {"size": "y"}}, "table x")
