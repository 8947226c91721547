"""Verdicts on claims and controls, from runs whose numbers are given."""

from __future__ import annotations

import math

import pretended_runs
import pytest
from pretended_runs import claims_of, page_of
from scipy import stats

from fedray.results.paired import PairedTest, Side, verdict_of
from fedray.results.paired import compare as compared
from fedray.studies.outcome import outcome

ROWS = {
    "mine": {"algorithm": "fedproto"},
    "base": {"algorithm": "fedavg"},
    "null": {"algorithm": "local", "control": "that prototypes help", "over": "base"},
}
ALONE = {
    "rows": ROWS,
    "baselines": [],
    "space": {},
    "claims": [{"better": "mine", "worse": "base"}],
}
SEEDS = {"seeds": [0, 1, 2, 3]}


def numbers(**by_row):
    """A curve that gives each row, seed by seed, its accuracies; in a column by "row/column"."""

    def curve(wanted):
        place = wanted.place
        values = by_row.get(f"{place.row}_{place.column}") or by_row[place.row]
        value = values[wanted.seed]
        return None if value is None else [(0.0, 0.0), (value, value)]

    return curve


CLEAR = {"mine": [0.52, 0.61, 0.43, 0.58], "base": [0.50, 0.60, 0.40, 0.57]}


def verdict(play, *, null=(0.1, 0.1, 0.1, 0.1), **changes):
    found = outcome(play(numbers(null=null, **CLEAR), **{**ALONE, "report": SEEDS, **changes}))
    return claims_of(found)[0]


def test_differences_are_paired_by_seed_and_tested_as_scipy_does(play):
    found = verdict(play)
    assert found.comparison.differences == pytest.approx({0: 2.0, 1: 1.0, 2: 3.0, 3: 1.0})
    expected = stats.ttest_rel(CLEAR["mine"], CLEAR["base"]).pvalue
    assert found.comparison.p == pytest.approx(expected)
    assert found.p_holm == pytest.approx(expected)  # the control's p is smaller
    assert found.verdict == "holds"
    interval = found.comparison.interval
    assert interval.mean == pytest.approx(1.75)
    assert interval.low > 0


def test_the_other_way_round_it_is_refuted(play):
    assert verdict(play, claims=[{"better": "base", "worse": "mine"}]).verdict == "refuted"


def test_a_margin_is_part_of_the_claim(play):
    found = verdict(play, claims=[{"better": "mine", "worse": "base", "margin": 1.5}])
    assert found.comparison.interval.mean == pytest.approx(0.25)
    assert found.verdict == "undecided"
    assert (
        verdict(play, claims=[{"better": "mine", "worse": "base", "margin": 5}]).verdict
        == "refuted"
    )
    assert (
        verdict(play, claims=[{"better": "mine", "worse": "base", "margin": -1}]).verdict == "holds"
    )


def test_the_page_says_which_test_and_how_many_looks(play):
    curve = numbers(null=[0.1] * 4, **CLEAR)
    book = play(curve, **{**ALONE, "report": {**SEEDS, "looks": 1}})
    text = page_of(book)
    assert "with their 97.5 % t interval; " in text
    assert "It is look 2 at these claims: each p is multiplied by 2." in text
    found = claims_of(outcome(book))[0]
    assert found.comparison.p == pytest.approx(2 * verdict(play).comparison.p)


def test_what_could_not_be_answered_was_asked_all_the_same(play):
    """Whether a row fails must not make the others' claims easier."""
    claims = [
        {"better": "mine", "worse": "base"},
        {"better": "mine", "worse": "lost"},
        {"better": "base", "worse": "lost"},
    ]
    rows = {name: ROWS[name] for name in ("mine", "base")} | {"lost": {"algorithm": "local"}}
    curve = numbers(lost=[None] * 4, **CLEAR)
    found = outcome(play(curve, **{**ALONE, "rows": rows, "claims": claims, "report": SEEDS}))
    assert [each.verdict for each in found.claims] == ["undecided", "not asked", "not asked"]
    assert found.claims[0].p_holm == pytest.approx(3 * found.claims[0].comparison.p)


def test_one_seed_decides_nothing(play):
    found = verdict(play, report={"seeds": [0]})
    assert (found.verdict, found.p_holm) == ("undecided", None)


def test_several_columns_are_compared_on_their_mean_seed_by_seed(play):
    columns = {"x": {}, "y": {"batch_size": 8}}
    curve = numbers(
        mine_x=[0.5, 0.6], mine_y=[0.7, 0.9], base_x=[0.4, 0.6], base_y=[0.6, 0.7], null=[0.1, 0.1]
    )
    claims = [
        {"better": "mine", "worse": "base"},
        {"better": "mine", "worse": "base", "on": "each"},
        {"better": "mine @ y", "worse": "mine @ x"},
    ]
    changes = {**ALONE, "report": {"seeds": [0, 1]}, "columns": columns, "claims": claims}
    found = outcome(play(curve, **changes)).claims[:4]
    differences = [list(each.comparison.differences.values()) for each in found]
    assert differences == [
        pytest.approx([10.0, 10.0]),
        pytest.approx([10.0, 0.0]),
        pytest.approx([10.0, 20.0]),
        pytest.approx([20.0, 30.0]),
    ]


# --- rounding -------------------------------------------------------------------------------------


def test_differences_that_are_equal_but_for_rounding_decide_by_their_signs():
    exact = [0.3 - 0.1, 0.5 - 0.3, 1.2 - 1.0]
    assert len(set(exact)) == 3
    for size in (1.0, 1e9):
        values = {seed: size * one for seed, one in enumerate(exact)}
        pairs = {**values, 9: size}, {**dict.fromkeys(values, 0.0)}
        found = compared(Side("a", None), Side("b", None), pairs, PairedTest())
        assert (found.p, found.interval.std, found.is_same) == (0.25, 0, False)
        assert found.interval.mean == pytest.approx(0.2 * size)
        assert (found.interval.low, found.interval.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("looks", [1, 4])
@pytest.mark.parametrize("count", [2, 5, 6, 8, 9])
def test_the_interval_of_equal_differences_agrees_with_their_p(looks, count):
    test = PairedTest(looks=looks)
    pairs = dict.fromkeys(range(count), 3.0), dict.fromkeys(range(count), 1.0)
    found = compared(Side("a", None), Side("b", None), pairs, test)
    decides = verdict_of(found, found.p) == "holds"
    assert decides == (count - 1 >= math.log2(looks / 0.05))
    ends = (2.0, 2.0) if decides else (-math.inf, math.inf)
    assert (found.interval.low, found.interval.high) == ends


def test_sides_that_are_the_same_on_every_seed_are_undecided_and_said_to_be(play):
    claims = [
        {"better": "mine", "worse": "base", "margin": 10},
        {"better": "base", "worse": "null", "margin": 30},
    ]
    curve = numbers(mine=[0.6, 0.7, 0.4], base=[0.5, 0.6, 0.3], null=[0.2, 0.3, 0.1])
    seeds = {"seeds": [0, 1, 2]}
    book = play(curve, **{**ALONE, "claims": claims, "report": seeds})
    found, other = claims_of(outcome(book))[:2]
    assert (found.verdict, found.p_holm) == ("undecided", 1)
    assert (found.comparison.is_same, other.comparison.is_same) == (True, False)
    text = page_of(book)
    (line,) = (line for line in text.splitlines() if line.startswith("| mine > base + 10 |"))
    assert "**undecided: the same on every seed**" in line
    assert text.count("the same on every seed") == 1


# --- controls -------------------------------------------------------------------------------------


def control(play, null, mine=(0.60, 0.61, 0.62, 0.63), base=(0.50, 0.52, 0.51, 0.53), **changes):
    """What a control shows, and the record."""
    curve = numbers(mine=list(mine), base=list(base), null=list(null))
    record = outcome(play(curve, **{**ALONE, "report": SEEDS, **changes}))
    return record.reading("null"), record


def test_a_control_is_two_claims_that_are_corrected_with_the_others(play):
    _, record = control(play, null=(0.56, 0.57, 0.57, 0.59))
    claims = claims_of(record)
    assert [str(each.claim.question) for each in claims] == [
        "mine > base",
        "mine > null",
        "null > mean(mine, base)",
    ]
    # seeds' middles are 0.55, 0.565, 0.565, 0.58
    expected = pytest.approx({0: 1.0, 1: 0.5, 2: 0.5, 3: 1.0})
    assert claims[2].comparison.differences == expected
    assert max(each.p_holm for each in claims) == max(each.p for each in claims)
    assert min(each.p_holm for each in claims) == pytest.approx(3 * min(e.p for e in claims))


def test_a_claim_that_a_control_makes_too_counts_once(play):
    claims = [
        {"better": "mine", "worse": "base"},
        {"better": "mine", "worse": "null", "source": "Table 2"},
    ]
    _, record = control(play, null=(0.5, 0.51, 0.51, 0.53), claims=claims)
    asked = [(each.claim.question, each.claim.source) for each in record.claims]
    assert asked[1:] == [("mine > null", "Table 2"), ("null > mean(mine, base)", "control")]


@pytest.mark.parametrize(
    ("null", "reading", "share"),
    [
        ((0.50, 0.515, 0.515, 0.53), "does not explain it away", 0.0),
        ((0.65, 0.66, 0.68, 0.68), "explains it away", 1.52),  # surely above the method
        ((0.59, 0.615, 0.625, 0.62), "explains it away", 0.98),  # above the middle
        ((0.58, 0.591, 0.60, 0.61), "explains most of it", 0.8),  # between both
        ((0.45, 0.70, 0.50, 0.75), "open", 0.85),
    ],
)
def test_a_control_is_read_from_its_two_verdicts(play, null, reading, share):
    read, record = control(play, null=null)
    assert read == reading
    assert record.share_of_gain("null") == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(
    ("null", "base", "reading"),
    [
        ((0.59, 0.60, 0.61, 0.65), (0.70, 0.71, 0.73, 0.73), "there is no gain to explain"),
        ((0.59, 0.60, 0.61, 0.62), (0.55, 0.68, 0.57, 0.70), "open: whether there is a gain"),
        ((0.50, 0.51, 0.53, 0.53), (0.55, 0.64, 0.57, 0.66), "open: whether there is a gain"),
        ((0.65, 0.66, 0.68, 0.68), (0.55, 0.64, 0.57, 0.66), "open: whether there is a gain"),
        # three signs of equal differences agree by chance once in four times
        ((0.49, 0.50, 0.505), (0.50, 0.51, 0.52), "open: whether there is a gain"),
    ],
)
def test_without_a_sure_gain_there_is_nothing_to_explain(play, null, base, reading):
    seeds = {"seeds": list(range(len(null)))}
    read, record = control(play, null=null, base=base, report=seeds)
    assert (read, record.share_of_gain("null")) == (reading, None)


def test_the_share_is_of_the_seeds_that_the_control_has(play):
    _, record = control(play, null=(0.55, 0.56, None, 0.58), base=(0.50, 0.50, 0.48, 0.53))
    gain = (10 + 11 + 10) / 3
    assert record.share_of_gain("null") == pytest.approx(1 - 5 / gain)


def test_the_gain_is_over_the_row_that_is_named(play):
    rows = {**ROWS, "low": {"algorithm": "fedprox"}}
    rows["null"] = {**ROWS["null"], "over": "low"}
    curve = numbers(mine=[0.6, 0.62], base=[0.5, 0.52], null=[0.5, 0.53], low=[0.1, 0.11])
    record = outcome(play(curve, **{**ALONE, "rows": rows}, report={"seeds": [0, 1]}))
    gain = record.gain("null")
    assert (gain.worse.row, gain.interval.mean) == ("low", pytest.approx(50.5))


# --- what is unfair -------------------------------------------------------------------------------


def test_rows_that_differ_in_more_than_their_method_are_said_to(play):
    rows = {**ROWS, "base": {"algorithm": "fedavg", "set": {"batch_size": 4, "local_epochs": 3}}}
    notes = outcome(play(numbers(null=[0.1] * 4, **CLEAR), **{**ALONE, "rows": rows}, report=SEEDS))
    assert [note for note in notes.notes if note.startswith("Rows differ in")] == [
        "Rows differ in local_epochs (base: 3; else 1)",
        "Rows differ in batch_size (base: 4; else 16)",
    ]


def test_rows_that_tried_more_are_said_to(play):
    rows = {**ROWS, "mine": {"algorithm": "fedproto", "space": {"lr": {"grid": [0.1, 0.2]}}}}

    def curve(wanted):
        return [(0.0, 0.0), (0.5, 0.5 + wanted.seed / 1000)]

    found = outcome(play(curve, **{**ALONE, "rows": rows}, report=SEEDS))
    assert any("different numbers of configurations" in note for note in found.notes)


def unlike(play, base: dict, **changes) -> list[str]:
    """The notes on what the row `base` is run with that the others are not."""
    rows = {**ROWS, "base": {"algorithm": "fedavg", **base}}
    curve = numbers(null=[0.1] * 4, **CLEAR)
    notes = outcome(play(curve, **{**ALONE, "rows": rows, "report": SEEDS, **changes})).notes
    return [note for note in notes if note.startswith("Rows ") and "tried" not in note]


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({}, []),
        ({"space": {"lr": None}}, ["base: held at 0.05; else 0.1, 0.2"]),
        ({"space": {"lr": {"grid": [0.1, 0.4]}}}, ["base: 0.1, 0.4; else 0.1, 0.2"]),
        ({"space": {"batch_size": {"grid": [4]}}}, ["base: 4; else held at 16"]),
        ({"algorithm": "fedprox", "space": {"algorithm.mu": {"grid": [0.1]}}}, []),
    ],
)
def test_what_rows_do_not_search_alike_is_said_once_for_each_key(play, base, said):
    space = {"space": {"lr": {"grid": [0.1, 0.2]}}, "tuning": {"configurations": 2}}
    columns = {"a": {"data.samples": 200}, "b": {"data.samples": 300}}
    notes = unlike(play, base, **space, columns=columns)
    key = "batch_size" if "batch_size" in str(base) else "lr"
    assert notes == [f"Rows search {key} differently ({each})" for each in said]


def worked(monkeypatch, **steps):
    """Have runs count steps: so many in a round by row, or by row and column."""

    def result_of(wanted, *args):
        place = wanted.place
        count = steps.get(f"{place.row}_{place.column}", steps.get(place.row, 10))
        return whole(wanted, *args, steps=count)

    whole = pretended_runs.result_of
    monkeypatch.setattr(pretended_runs, "result_of", result_of)


STEPS = "Rows differ in optimiser steps of clients, as multiples of the median"
IMAGES = "Rows differ in images that clients' models read, as multiples of the median"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({"base": 15}, None),  # 15 / 10 is not above 1.5
        ({"base": 16}, "base: 1.6; else 1.0"),
        ({"base": 0}, "base: none; else 1.0"),
        ({"base_a": 12, "base_b": 50, "mine_a": 20}, "mine: 1.7; base: 5.0; else 1.0"),
        ({"base_a": 20, "mine_b": 20, "null_b": 20}, "base: 2.0; else 1.0"),  # each in one column
    ],
)
def test_a_row_that_did_above_one_and_a_half_times_another_is_named(play, monkeypatch, steps, text):
    worked(monkeypatch, **steps)
    notes = unlike(play, {}, columns={"a": {"data.samples": 200}, "b": {"data.samples": 300}})
    assert notes == ([] if text is None else [f"{STEPS} ({text})", f"{IMAGES} ({text})"])
