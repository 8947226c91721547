"""Which configurations are tried, and how a grid goes on where the choice lies at its edge."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.studies.cell import TriedConfig, rank
from fedray.studies.space import (
    beyond,
    draws,
    grid,
    next_value,
    parse_space,
)


def axes(**space):
    return parse_space(space)


def continued(tried, axes):
    """The ends at which the best configuration lies, each with the next one there."""
    known = [each.config for each in tried]
    found = beyond(axes, known, rank(tried)[0])
    return [(" ".join(re.findall(r"^\S+|lowest|highest", end)), config) for end, config in found]


def value_of(config, value):
    return TriedConfig(config, {100: value})


LR = axes(lr={"grid": [0.01, 0.03, 0.1]})


def tried(*pairs):
    return [value_of({"lr": lr}, value) for lr, value in pairs]


def test_random_draws_are_the_same_for_every_method_that_has_the_axis():
    alone = axes(lr={"loguniform": [0.001, 1.0]})
    beside = axes(rounds={"randint": [1, 10]}, lr={"loguniform": [0.001, 1.0]})
    first = [config["lr"] for config in draws(alone, 6)]
    assert first == [config["lr"] for config in draws(beside, 6)]
    assert len(set(first)) == 6
    assert all(0.001 <= lr <= 1.0 for lr in first)


@given(st.integers(1, 30))
def test_random_whole_numbers_stay_within_both_ends(count):
    """A range excludes its upper end, as in Ray Tune, but for the one with steps."""
    ranges = {
        "randint": [2, 5],
        "lograndint": [2, 5],
        "qrandint": [2, 8, 2],
        "quniform": [0.5, 2, 0.5],
    }
    within = {"randint": {2, 3, 4}, "lograndint": {2, 3, 4}, "qrandint": {2, 4, 6, 8},
              "quniform": {0.5, 1, 1.5, 2}}  # fmt: skip
    for name, values in ranges.items():
        found = [config["rounds"] for config in draws(axes(rounds={name: values}), count)]
        assert {*found} <= within[name]
        assert len(found) == len({*found})


def test_a_choice_inside_ends_the_search():
    assert continued(tried((0.01, 0.2), (0.03, 0.9), (0.1, 0.3)), LR) == []


@pytest.mark.parametrize(
    ("best", "next_one"), [(0.1, 0.333333), (0.01, 0.00333333)], ids=["highest", "lowest"]
)
def test_a_choice_at_the_edge_goes_on_by_the_same_factor(best, next_one):
    pairs = [(lr, 0.9 if lr == best else 0.1) for lr in (0.01, 0.03, 0.1)]
    end = "highest" if best == 0.1 else "lowest"
    assert continued(tried(*pairs), LR) == [(f"lr={best} {end}", {"lr": next_one})]


def test_a_grid_that_was_continued_goes_on_until_it_gets_worse():
    pairs = [(0.01, 0.1), (0.03, 0.2), (0.1, 0.3), (0.333333, 0.4)]
    [(_, wanted)] = continued(tried(*pairs), LR)
    assert wanted["lr"] == pytest.approx(1.11111, rel=1e-5)
    assert continued(tried(*pairs, (1.11111, 0.0)), LR) == []


def test_a_corner_of_a_grid_goes_on_along_both_axes():
    two = axes(lr={"grid": [0.1, 0.2]}, local_epochs={"grid": [1, 2]})
    results = [
        value_of({"lr": lr, "local_epochs": epochs}, lr + epochs)
        for lr in (0.1, 0.2)
        for epochs in (1, 2)
    ]
    assert continued(results, two) == [
        ("lr=0.2 highest", {"lr": 0.4, "local_epochs": 2}),
        ("local_epochs=2 highest", {"lr": 0.2, "local_epochs": 4}),
    ]


def test_an_axis_that_no_other_value_was_tried_on_beside_the_choice_is_at_an_edge_all_the_same():
    """lr was continued to 0.4, with the highest number of epochs alone."""
    two = axes(lr={"grid": [0.1, 0.2]}, local_epochs={"grid": [1, 2]})
    grid = [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2), (0.4, 2)]
    results = [value_of({"lr": lr, "local_epochs": n}, -abs(lr - 0.4) + n) for lr, n in grid]
    assert continued(results, two) == [
        ("lr=0.4 highest", {"lr": 0.8, "local_epochs": 2}),
        ("local_epochs=2 highest", {"lr": 0.4, "local_epochs": 4}),
    ]


def test_what_failed_is_no_choice_and_names_have_no_edges():
    names = axes(optimizer={"grid": ["sgd", "adam"]})
    found = [value_of({"optimizer": "sgd"}, None), value_of({"optimizer": "adam"}, 0.1)]
    assert rank(found) == [{"optimizer": "adam"}]
    assert continued(found, names) == []
    assert rank(found[:1]) == []


@pytest.mark.parametrize("least", [0.3, 0.1 + 0.2], ids=["0.3 first", "0.1 + 0.2 first"])
def test_sums_in_another_order_are_equals(least):
    more = {0.3: 0.1 + 0.2}.get(least, 0.3)
    assert least != more
    assert rank(tried((0.01, least), (0.03, more)))[0] == {"lr": 0.01}
    assert rank(tried((0.01, 0.3), (0.03, 0.3 + 1e-9)))[0] == {"lr": 0.03}


@pytest.mark.parametrize(
    ("before", "last", "following"),
    [(1, 10, 100), (5, 4, 3), (0, 1, 2), (1.0, 0.0, -1.0), (2, 3, 4), (0.3, 0.1, 1 / 30)],
)
def test_what_continues_numbers(before, last, following):
    found = next_value(before, last)
    assert found == pytest.approx(following, rel=1e-5)
    assert isinstance(found, type(last))


def test_whole_numbers_move_by_one_at_least():
    assert next_value(10, 1) == 0
    assert next_value(2, 1) == 0


def test_a_grid_of_two_axes_goes_on_from_the_choice_at_the_edge():
    two = axes(lr={"grid": [0.1, 0.2]}, local_epochs={"grid": [1, 2, 3]})
    best = {"lr": 0.2, "local_epochs": 2}
    wanted = [config for _, config in beyond(two, grid(two), best)]
    assert wanted == [{"lr": 0.4, "local_epochs": 2}]
