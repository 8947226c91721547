"""Invalid data: every mistake with its key and what was found there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, Frozen, default_entry
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
    ("tree", "message"),
    [
        ({"count": 0}, "count: input should be greater than or equal to 1, found 0"),
        ({"which": "d"}, "which: input should be 'a', 'b' or 'c', found 'd'"),
        (
            {"many": [1, "x"]},
            "many.1: input should be a valid integer, found 'x'; "
            "many: input should be a valid string, found [1, 'x']",
        ),
        ({"chosen": 3}, "chosen: expected a name, or a mapping {name: NAME, ...}; found 3"),
        ({"inner": 3}, "inner has keys of its own, found 3"),
        ({"lambda": -1}, "lambda: input should be greater than or equal to 0, found -1"),
    ],
)
def test_a_mistake_is_one_clause(tree: dict[str, Any], message: str):
    with pytest.raises(UserError) as refused:
        validate(Whole, tree)
    assert str(refused.value) == message


def test_the_place_of_the_data_stands_before_the_key():
    with pytest.raises(UserError, match=r"^table x\.inner\.size: input should be a valid integer"):
        validate(Whole, {"inner": {"size": "y"}}, "table x")


def test_all_mistakes_are_named_at_once():
    with pytest.raises(UserError) as refused:
        validate(Whole, {"count": 0, "inner": {}, "counts": 1, "on": 1})
    assert str(refused.value) == (
        "count: input should be greater than or equal to 1, found 0; on: input should be a valid "
        "boolean, found 1; inner.size is missing; unknown key 'counts' in the experiment. Did you "
        "mean 'count'?"
    )


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ({"count": True}, "true"),
        ({"count": "3"}, "'3'"),
        ({"count": 3.0}, "3.0"),
        ({"share": True}, "true"),
        ({"share": "0.5"}, "'0.5'"),
        ({"on": "true"}, "'true'"),
        ({"text": 3}, "3"),
    ],
)
def test_a_value_of_another_type_is_not_converted(tree: dict[str, Any], found: str):
    with pytest.raises(UserError, match=rf"^\w+: input should be a valid \w+, found {found}$"):
        validate(Whole, tree)


def test_a_whole_number_is_a_number():
    assert validate(Whole, {"share": 1}).share == 1.0
