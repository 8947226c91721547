"""Scale `printed`: the paper's own protocol, cell by cell beside the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
from commands import plan_words
from pretended_runs import page_of

from fedray.config import flatten
from fedray.results.design import Place
from fedray.results.numbers import Numbers
from fedray.results.paired import Side
from fedray.studies.outcome import outcome

ROWS = {
    "mine": {"algorithm": "fedproto", "space": {"algorithm.lambda": {"grid": [1, 5]}}},
    "base": {"algorithm": "fedavg"},
    "follower": {"algorithm": "fedprox", "tuned_as": "base"},
    "null": {"algorithm": "local", "control": "that prototypes help", "space": {"lr": None}},
}
TABLE = {
    "items": [{"paper": "fedtsp", "item": "Table 1"}],  # whose numbers are means of three seeds
    "rows": ROWS,
    "baselines": [],
    "columns": {"Dir(0.1)": {"data.partition.alpha": 0.1}, "Dir(1)": {}},
    "space": {"lr": {"grid": [0.1, 0.3]}},
    "tuning": {"configurations": 9},
    "claims": [{"better": "mine", "worse": "base"}],
    "report": {"seeds": [0, 1, 2, 3, 4]},
    "paper": {"source": "a paper", "numbers": {"mine": {"Dir(0.1)": [70, 0.5]}, "base": 50.25}},
    "scales": {
        "laptop": {},
        "paper": {
            "set": {"lr": 0.01},
            "rows": {"base": {"set": {"optimizer.momentum": 0.9}, "space": {"lr": None}}},
            "space": {"local_epochs": {"grid": [1, 2]}},
            "tuning": {"configurations": 9, "rounds": 2},
        },
    },
}


PAPER = TABLE["scales"]["paper"]
PLAIN = {"rows": "mine base follower", "mine": {"lr": 0.01}, "base": {"optimizer.momentum": 0.9}}
SHOTS = {"data.partition": "class_chunks", "data.shots": 6}
HELD_OUT = {
    "set": {"data.validation_fraction": 0.5}, "columns": {"Dir(1)": {}},
    "scales": {"paper": {**PAPER, "set": {"lr": 0.01, **SHOTS}}},
}  # fmt: skip
NULL = {**TABLE["paper"], "numbers": {**TABLE["paper"]["numbers"], "null": 12.5}}
CURVE = {"columns": {}, "curve": {"data.partition.alpha": [0.1, 1]}}
SPARSE = {"scales": {"paper": {**PAPER, "set": {"lr": 0.01, "eval_every": 5}}}}
PLANS: list[tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any]]] = [
    (None, {}, PLAIN),
    (None, {}, {"mine": {"data.validation_fraction": None, "report.select": "validation"}}),
    ({"rows": {"base": {"label": "Base"}}}, {}, PLAIN),
    ({"report": {"select": "test"}}, {}, {"mine": {"report.select": "test"}}),
    ({}, {"experiment": "fedtsp_cifar10_paper"}, {"select": "test"}),
    (
        {"set": {"rounds": 7}, "rows": {"mine": {"set": {"lr": 0.5}}, "follower": None}}, {},
        {"rows": "mine base", "mine": {"lr": 0.5, "rounds": 7},
         "base": {"optimizer.momentum": 0.9}},
    ),
    (None, SPARSE, {"mine": {"eval_every": 1}}),
    ({"set": {"eval_every": 2}}, SPARSE, {"mine": {"eval_every": 2}}),
    (None, {"paper": NULL}, {"rows": "mine base follower null"}),
    (None, {"glosses": {"null": "a row that goes"}}, {"rows": "mine base follower"}),
    ({"rows": {"null": {}}}, {}, {"rows": "mine base follower null"}),
    (None, HELD_OUT, {"mine": {"data.shots": None, "data.validation_fraction": None}}),
    ({"set": {"data.shots": 4}}, HELD_OUT, {"mine": {"data.shots": 4}}),
    (None, CURVE, {"columns": "alpha=0.1 alpha=1"}),
    (
        {"columns": {"Dir(0.3)": {"data.partition.alpha": 0.3}}}, CURVE,
        {"columns": "Dir(0.3)"},
    ),
]  # fmt: skip
"""The entry `printed` of the scales, other keys of the table, and what follows."""


@pytest.mark.parametrize(("own", "changes", "expected"), PLANS)
def test_the_paper_scale_as_the_paper_has_it(write, own, changes, expected):
    tree = {**TABLE, **changes}
    entry = {} if own is None else {"printed": own}
    write(**{**tree, "scales": {**tree["scales"], **entry}})
    plan = plan_words("table", "tiny", scale="printed")
    assert (plan.claims, plan.report.seeds) == ([], [0, 1, 2])
    for row in plan.rows:
        assert plan.configurations(row) == [{}]
        assert plan.rows[row].control is None
    for name, wanted in expected.items():
        if isinstance(wanted, str):
            found = getattr(plan, name)
            assert wanted == (found if name == "select" else " ".join(found))
            continue
        place = Place(name, list(plan.columns)[-1])
        tree = flatten(plan.experiment_of(place, {}, "report", 0).tree())
        assert {key: tree.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("table", "seeds"),
    [("fedtsp_table1", 3), ("fedglcl_table1", 3), ("fedglcl_table10", 1), ("fedmgp_table9", 1)],
)
def test_seeds_are_those_that_the_paper_reports(table, seeds):
    assert len(plan_words("table", table, scale="printed").report.seeds) == seeds


@pytest.mark.parametrize(("scale", "row"), [("printed", "base"), ("laptop", "mine")])
def test_rows_may_be_picked_at_every_scale(write, scale, row):
    write(**TABLE)
    plan = plan_words("table", "tiny", scale=scale, rows=[row])
    assert (list(plan.rows), plan.claims) == ([row], [])


def test_each_cell_stands_beside_the_papers_number(play, here):
    def curve(wanted):
        value = {"mine": 0.695, "base": 0.6, "follower": 0.3}[wanted.place.row]
        return [(0.0, 0.0), (0.0, value + wanted.seed / 100)]

    book = play(curve, (), "printed", **TABLE)
    page = page_of(book)
    assert outcome(book).claims == []
    assert "verdict" not in page
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    compared = {
        (row, column): cells for row, column, _, *cells in (x for x in lines if len(x) == 8)
    }
    assert compared["mine", "Dir(0.1)"] == ["70.50", "69.50 to 71.50", "70 ± 0.5", "+0.50", "yes"]
    assert compared["base", "Dir(1)"] == ["61.00", "60.00 to 62.00", "50.25", "+10.75", "no"]
    assert "3 printed numbers stand beside ours; 1 of 3 lie within the spread of our seeds" in page


def test_numbers_of_a_paper_are_read_where_it_prints_them(write):
    paper = {
        "source": "FedTSP, Tables 5 and 1",
        "item": "fedtsp, Table 5, Table 1",
        "rows": {"mine": ["Nobody", "FedProto"], "local": "FedAvg"},
        "columns": {
            "*": ["CIFAR-100 | General Federated Learning | α=0.1", "CIFAR-100 | α=0.1"],
            "mean": "nowhere",
        },
    }
    write(paper=paper)
    plan = plan_words("table", "tiny")
    assert plan.paper_of("mine", "all") == (41.07, 0.17)
    assert plan.paper_of("local", "all")[0] == 34.47
    assert plan.paper_of("local", None) is None


def test_no_verdict_is_made_of_a_number_in_doubt():
    plan = plan_words("table", "fedmgp_table14", scale="printed")
    judged = {row: plan.is_doubtful(row, None, "local_accuracy") for row in plan.rows}
    assert judged == {"t1": False, "t01": True, "t05": True, "t08": True, "t2": True}
    assert plan.paper_of("t05", None, "local_accuracy") == (85.45, None)


def test_a_mean_that_the_paper_computes_from_means_is_computed_so():
    """FedMGP's CM in its ablations: 85.43 of the means of three sets, where CM's mean is 85.41."""
    assert plan_words("table", "fedmgp_table14").from_means == []
    metrics = plan_words("table", "fedmgp_table14", scale="printed").from_means
    sets = {"Caltech101": (98.45, 97.05, 94.48), "Flowers": (99.31, 73.39, 74.33)}
    parts = ("local_accuracy", "accuracy_base", "accuracy_novel")
    lines = [
        ["t1", column, 0, metric, value, 1, 0.0, 0, "finished", ""]
        for column, values in sets.items()
        for metric, value in zip(parts, values, strict=True)
    ]
    local, base, novel = (mean(values) for values in zip(*sets.values(), strict=True))
    numbers = replace(Numbers.of(lines, sets), from_means=metrics)
    cm = (local + 2 * base * novel / (base + novel)) / 2
    assert numbers.by_seed(Side("t1", None), "accuracy_cm") == {0: pytest.approx(cm)}
