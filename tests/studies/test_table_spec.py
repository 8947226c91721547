"""Tables as files: which experiments, rows, columns and claims follow from what is written."""

from __future__ import annotations

from typing import Any

import pytest
from commands import plan_words

from fedray.base.errors import UserError
from fedray.config import dump_yaml, flatten
from fedray.results.claims import ClaimEntry, parse_claims
from fedray.results.design import Place
from fedray.results.paired import Side
from fedray.studies.cell import check_metrics
from fedray.studies.plan import FRACTION, StudyPlan, store_key

MINE = {"algorithm": "fedproto"}
LAYERS = {
    "set": {"local_epochs": 2, "batch_size": 8},
    "rows": {"mine": {**MINE, "set": {"batch_size": 4}}},
    "columns": {"a": {"data.partition.alpha": 0.3, "local_epochs": 4}, "b": {}},
    "tuning": {"rounds": 1},
    "report": {"rounds": 5, "seeds": [7]},
    "scales": {"laptop": {}, "desktop": {"set": {"local_epochs": 3}, "columns": {"c": {}}}},
}
LONG = {"rows": {"mine": {**MINE, "set": {"rounds": 7}}}}
CURVE = {"curve": {"algorithm.lambda": [0, 0.5, 7]}, "claims": []}
TEST = {"report": {"seeds": [0, 1], "select": "test"}}
Expected = dict[str, dict[str, Any]]
EXPERIMENTS: list[tuple[dict[str, Any], str, Expected]] = [
    *(
        ({"rows": {"mine": MINE, "fedavg": tree}}, "", {"fedavg": {"algorithm.name": "fedavg"}})
        for tree in (None, {}, {"label": "FedAvg"}, {"set": {"batch_size": 4}})
    ),
    (
        {"scales": {"laptop": {"rows": {"mine": "fedprox"}}}}, "",
        {"mine": {"algorithm.name": "fedprox"}, "local": {"algorithm.name": "local"}},
    ),
    (LONG, "", {"mine": {"rounds": 7}, "mine tuning": {"rounds": 7}, "local": {"rounds": 2}}),
    (
        LONG, "rounds=3",
        {"mine": {"rounds": 7}, "mine tuning": {"rounds": 3}, "local": {"rounds": 3}},
    ),
    (
        LAYERS, "--scale desktop",
        {"mine @ c tuning": {"local_epochs": 3, "batch_size": 4, "rounds": 1}},
    ),
    (
        LAYERS, "batch_size=2 rounds=4 report.seeds=[1,2]",
        {
            "mine @ a": {"batch_size": 2, "rounds": 4, "local_epochs": 4,
                         "data.partition.alpha": 0.3},
            "mine @ b tuning": {"rounds": 4},
            "local @ a": {"algorithm.name": "local"},
        },
    ),
    (
        {"curve": {"rounds": [1, 3]}}, "tuning.rounds=1",
        {"mine @ rounds=3": {"rounds": 3}, "mine @ rounds=3 tuning": {"rounds": 1}},
    ),
    (CURVE, "", {"mine @ lambda=0.5": {"algorithm.lambda": 0.5}}),  # the row's algorithm says 2
    (
        {"rows": {"mine": {**MINE, "set": {"lr": 0.5}, "space": {"lr": None}}}}, "",
        {"mine": {"lr": 0.5}},
    ),
    ({}, "", {"mine": {FRACTION: 0.2, "report.select": "validation"}}),
    ({"set": {FRACTION: 0.4}}, "", {"mine": {FRACTION: 0.4}}),
    (TEST, "", {"mine": {FRACTION: None, "report.select": "test"}}),
    ({}, "report.select=test", {"mine": {FRACTION: None, "report.select": "test"}}),
]  # fmt: skip


def planned(line: str = "", name: str = "tiny") -> StudyPlan:
    """Return the plan of a table with the words of a command line."""
    words = line.split()
    scale = words[words.index("--scale") + 1] if "--scale" in words else None
    return plan_words("table", name, [word for word in words if "=" in word], scale)


@pytest.mark.parametrize(("changes", "line", "expected"), EXPERIMENTS)
def test_the_experiments_of_a_table(write, changes, line, expected):
    write(**changes)
    plan = planned(line)
    for where, keys in expected.items():
        row, _, column = where.removesuffix(" tuning").partition(" @ ")
        phase = "tuning" if where.endswith(" tuning") else "report"
        experiment = plan.experiment_of(Place(row, column or "all"), {}, phase, 0)
        tree = flatten(experiment.tree())
        assert {key: tree.get(key) for key in keys} == keys, where


def test_a_method_alone_is_compared_with_three_baselines(here):
    path = here / "tune" / "tables" / "mine.yaml"
    path.write_text("rows:\n  mine: {algorithm: {name: fedproto, lambda: 3}}\n")
    plan = planned(name="mine")
    assert list(plan.rows) == ["mine", "local", "fedavg", "fedproto"]
    assert (plan.scale, list(plan.columns), plan.select) == ("laptop", ["all"], "validation")
    assert plan.chosen_by("mine") == "validation/local_accuracy"
    assert plan.report.seeds == [0, 1, 2, 3, 4]
    assert len({repr(row.space) for row in plan.rows.values()}) == 1
    questions = [claim.question for claim in plan.parsed_claims()]
    assert questions == ["mine > local", "mine > fedavg", "mine > fedproto"]
    for words, seeds in (("seed=3", [3]), ("report.seeds=[3,4]", [3, 4])):
        assert planned(words, "mine").report.seeds == seeds
    experiments = [
        plan.experiment_of(Place(row, "all"), {"lr": 0.1}, "report", 1) for row in plan.rows
    ]
    assert len({store_key(experiment) for experiment in experiments}) == 4
    trees = [experiment.tree() for experiment in experiments]
    for tree in trees:
        del tree["algorithm"]
    assert all(tree == trees[0] for tree in trees), "the same data, models, steps and seed"


def test_claims_of_a_row_that_a_scale_leaves_out_go_with_it(write):
    claims = [
        {"better": "mine", "worse": ["gone", "local"], "margin": -1},
        {"better": "gone", "worse": "mine"},
    ]
    changes = {"gone": None, "mine": {"set": {"batch_size": 4}}}
    write(claims=claims, baselines=["local", "gone"], scales={"laptop": {"rows": changes}})
    plan = planned()
    assert [claim.question for claim in plan.parsed_claims()] == ["mine > local - 1"]
    assert list(plan.rows) == ["mine", "local"]
    assert plan.rows["mine"].set == {"batch_size": 4}
    write(claims=[])
    assert planned().parsed_claims() == []


def test_a_curve_is_columns_of_one_key_until_a_scale_has_columns(write):
    write(**CURVE, glosses={"lambda=7": "the paper's"})
    plan = planned()
    assert (list(plan.columns), plan.curve) == (
        ["lambda=0", "lambda=0.5", "lambda=7"], "algorithm.lambda"
    )  # fmt: skip
    scales = {"laptop": {"curve": {"batch_size": [4, 8]}}, "desktop": {"columns": {"b": {}}}}
    write(columns={"a": {}}, scales=scales)
    assert list(planned().columns) == ["batch_size=4", "batch_size=8"]
    assert planned("--scale desktop").curve is None


def test_where_less_is_better_methods_are_claimed_to_have_less(write):
    write(metrics=["train_loss", "local_accuracy"], choose="local_accuracy")
    (claim,) = planned().parsed_claims()
    assert (claim.better.row, claim.worse.row) == ("local", "mine")  # better is what is larger


def test_a_row_has_metrics_and_axes_of_its_own(write):
    rows = {
        "mine": {**MINE, "metrics": {"local_accuracy": "global_accuracy"},
                 "space": {"algorithm.lambda": {"grid": [1, 7]}}},
        "plain": {"algorithm": "local", "space": {"lr": None}},
    }  # fmt: skip
    write(rows=rows, tuning={"configurations": 4})
    plan = planned()
    assert plan.chosen_by("mine") == "validation/global_accuracy"
    assert plan.chosen_by("plain") == "validation/local_accuracy"
    assert {*plan.rows["mine"].space} == {"lr", "algorithm.lambda"}
    assert plan.rows["plain"].space == {}


def test_a_choice_on_the_test_needs_no_validation_images(write):
    write()
    plan = planned(f"{FRACTION}=null report.select=test")
    check_metrics(plan, "mine", plan.experiment_of(Place("mine", "all"), {}, "report", 0))


def test_a_tables_plugin_is_used_by_the_rows_that_name_it_and_kept_with_its_text(write, plugin):
    write(rows={"doubtful": None})
    plan = plan_words("table", "tiny", plugins=["mine.py"])
    plugin.unlink()
    again = StudyPlan.model_validate_json(plan.model_dump_json())
    for row, name in (("doubtful", "doubtful"), ("local", "local")):
        found = again.experiment_of(Place(row, "all"), {}, "report", 0)
        assert found.algorithm.name == name
        assert [plugin.module for plugin in found.plugins] == ["mine"] * (row == "doubtful")
    assert planned("plugins=null").base.get("plugins") is None


def test_a_plan_survives_its_file(write):
    write(paper={"source": "a paper", "numbers": {"mine": [12.5, 0.5]}})
    plan = planned()
    assert StudyPlan.model_validate_json(plan.model_dump_json()) == plan
    assert (plan.paper_of("mine", "all"), plan.paper_of("local", "all")) == ((12.5, 0.5), None)


def test_a_control_explains_the_first_row_unless_it_names_another(write):
    rows = {
        "mine": MINE,
        "other": {"algorithm": "fedavg"},
        "null": {"algorithm": "local", "control": "that prototypes help"},
        "second": {"algorithm": "local", "control": "that means help", "of": "other"},
    }
    write(rows=rows)
    assert [planned().rows[name].of for name in rows] == [None, None, "mine", "other"]


# --- claims ---------------------------------------------------------------------------------------


def parsed(*entries, columns=("x", "y")):
    read = [ClaimEntry(**entry) for entry in entries]
    return parse_claims(read, ["a", "b"], columns, ["m", "n"])


def test_a_claim_is_about_the_mean_unless_it_names_a_column():
    (claim,) = parsed({"better": "a", "worse": "b", "margin": 1.5})
    assert (claim.better, claim.worse, claim.margin) == (Side("a", None), Side("b", None), 1.5)
    (claim,) = parsed({"better": "a @ x", "worse": "a @ y", "margin": -2, "metric": "n"})
    assert (claim.better, claim.worse) == (Side("a", "x"), Side("a", "y"))
    assert (claim.margin, claim.metric, claim.than) == (-2.0, "n", "n")
    (claim,) = parsed({"better": "a", "worse": "b"}, columns=["x"])
    assert claim.better == Side("a", "x")
    entry = {"better": "a @ x", "worse": "b"}
    with pytest.raises(UserError, match="compares one column with a mean over all columns"):
        parsed(entry)
    for columns, on in ((["x", "y"], "x"), (["x"], "mean")):
        (claim,) = parsed({**entry, "on": on}, columns=columns)
        assert (claim.better.column, claim.worse.column) == ("x", "x")


def test_an_entry_is_a_claim_for_each_worse_side_and_column():
    claims = parsed(
        {"better": "a", "worse": ["b", "a @ x"], "on": "each", "metric": "m", "than": "n"}
    )
    assert [claim.question for claim in claims] == [
        "a @ x: m > n", "a @ y: m > n", "a @ x: m > n", "a @ y: m > n"
    ]  # fmt: skip
    assert [str(claim.worse) for claim in claims] == ["b @ x", "b @ y", "a @ x", "a @ x"]


@pytest.mark.parametrize(
    ("entries", "count"),
    [
        ([{"better": "a", "worse": "b"}, {"better": "a", "worse": "b", "source": "again"}], 1),
        (
            [{"better": "a @ x", "worse": "b @ x"}, {"better": "a @ y", "worse": "b @ y"},
             {"better": "a", "worse": "b", "on": "each"}],
            2,
        ),
        ([{"better": "a", "worse": "b", "on": "x"}, {"better": "a @ x", "worse": "b @ x"}], 1),
        (
            [{"better": "a", "worse": "b"}, {"better": "a", "worse": "b", "margin": 1},
             {"better": "a", "worse": "b", "metric": "n"},
             {"better": "a", "worse": "b", "than": "n"},
             {"better": "b", "worse": "a", "margin": -2}, {"better": "a @ x", "worse": "b @ y"},
             {"better": "a @ y", "worse": "b @ x"}],
            7,
        ),
    ],
)  # fmt: skip
def test_a_claim_that_is_written_twice_is_one_with_the_first_source(entries, count):
    found = parsed(*({"source": str(n), **entry} for n, entry in enumerate(entries)))
    assert len(found) == count
    assert [claim.source for claim in found] == [str(n) for n in range(count)]


def test_data_in_another_place_is_another_run(write, here):
    (here / "here.yaml").write_text(dump_yaml({"extends": "fedavg_digits"}))
    write()
    experiment = planned().experiment_of(Place("mine", "all"), {}, "report", 0)
    moved = experiment.model_copy(
        update={"data": experiment.data.model_copy(update={"root": "/elsewhere"})}
    )
    assert experiment.identity() == moved.identity()
    assert store_key(experiment) != store_key(moved)
    other = experiment.model_copy(update={"workers": 3, "name": "other"})
    assert store_key(experiment) == store_key(other)
