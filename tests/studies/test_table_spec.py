"""Tables as files: what is left out has a default, what is wrong is said in one sentence."""

from __future__ import annotations

import pytest
from commands import plan_words

from fedray.base.errors import UserError
from fedray.config import dump_yaml
from fedray.results.claims import ClaimEntry, parse_claims
from fedray.results.design import Place
from fedray.results.paired import Side
from fedray.studies.plan import FRACTION, StudyPlan, store_key


@pytest.fixture
def five_lines(here):
    """The shortest file: a method of one's own."""
    path = here / "tune" / "tables" / "mine.yaml"
    path.write_text("rows:\n  mine: {algorithm: {name: fedproto, lambda: 3}}\n")
    return path


def test_a_method_alone_is_compared_with_three_baselines(five_lines):
    plan = plan_words("table", "mine")
    assert list(plan.rows) == ["mine", "local", "fedavg", "fedproto"]
    assert plan.scale == "laptop"
    assert list(plan.columns) == ["all"]
    assert plan.select == "validation"
    assert plan.chosen_by("mine") == "validation/local_accuracy"
    assert plan.report.seeds == [0, 1, 2, 3, 4]
    spaces = [row.space for row in plan.rows.values()]
    assert all(space == spaces[0] for space in spaces)
    assert [claim.question for claim in plan.parsed_claims()] == [
        "mine > local",
        "mine > fedavg",
        "mine > fedproto",
    ]


def test_the_command_line_gives_seeds_and_selection(five_lines):
    assert plan_words("table", "mine", ["seed=3"]).report.seeds == [3]
    assert plan_words("table", "mine", ["report.seeds=[3,4]"]).report.seeds == [3, 4]
    assert plan_words("table", "mine", ["report.select=test"]).select == "test"


def test_all_rows_have_the_same_data_models_and_steps(five_lines):
    plan = plan_words("table", "mine")
    experiments = [
        plan.experiment_of(Place(row, "all"), {"lr": 0.1}, "report", 1) for row in plan.rows
    ]
    trees = [experiment.tree() for experiment in experiments]
    for tree in trees:
        assert tree.pop("algorithm")["name"] in ("fedproto", "local", "fedavg")
    assert all(tree == trees[0] for tree in trees)
    assert trees[0]["data"]["validation_fraction"] == 0.2
    assert trees[0]["seed"] == 1
    assert len({store_key(experiment) for experiment in experiments}) == 4


@pytest.mark.parametrize("tree", [None, {}, {"label": "FedAvg"}, {"set": {"batch_size": 4}}])
def test_a_row_called_after_an_algorithm_is_that_algorithm(write, tree):
    write(rows={"mine": {"algorithm": "fedproto"}, "fedavg": tree})
    plan = plan_words("table", "tiny")
    assert plan.experiment_of(Place("fedavg", "all"), {}, "report", 0).algorithm.name == "fedavg"


def test_a_scale_may_name_a_rows_method_alone(write):
    write(scales={"laptop": {"rows": {"mine": "fedprox"}}})
    at = plan_words("table", "tiny").experiment_of(Place("mine", "all"), {}, "report", 0)
    assert at.algorithm.name == "fedprox"


def test_a_row_reports_the_rounds_that_it_sets_and_tunes_as_long_as_others(write):
    write(rows={"mine": {"algorithm": "fedproto", "set": {"rounds": 7}}})
    for words in ([], ["rounds=3"]):
        plan = plan_words("table", "tiny", words)
        found = [
            plan.experiment_of(Place(row, "all"), {}, phase, 0).rounds
            for row, phase in (("mine", "report"), ("mine", "tuning"), ("local", "report"))
        ]
        assert found == ([7, 3, 3] if words else [7, 7, 2])


def test_layers_are_laid_on_each_other(write, here):
    write(
        set={"local_epochs": 2, "batch_size": 8},
        rows={"mine": {"algorithm": "fedproto", "set": {"batch_size": 4}}},
        columns={"a": {"data.partition.alpha": 0.3, "local_epochs": 4}, "b": {}},
        tuning={"rounds": 1},
        report={"rounds": 5, "seeds": [7]},
        scales={"laptop": {}, "desktop": {"set": {"local_epochs": 3}, "columns": {"c": {}}}},
    )
    plan = plan_words("table", "tiny", [], "desktop")
    assert list(plan.columns) == ["c"]
    at = plan.experiment_of(Place("mine", "c"), {"lr": 0.5}, "tuning", 3)
    assert (at.local_epochs, at.batch_size, at.rounds, at.lr, at.seed) == (3, 4, 1, 0.5, 3)
    plan = plan_words("table", "tiny", ["batch_size=2", "rounds=4", "report.seeds=[1,2]"])
    at = plan.experiment_of(Place("mine", "a"), {}, "report", 7)
    assert (at.batch_size, at.rounds, at.local_epochs) == (2, 4, 4)
    assert at.data.partition.tree()["alpha"] == 0.3
    assert plan.report.seeds == [1, 2]
    assert plan.tuning.rounds == 4
    at = plan.experiment_of(Place("local", "a"), {}, "report", 7)
    assert at.algorithm.name == "local"


def test_a_column_of_rounds_is_not_overruled(write):
    write(curve={"rounds": [1, 3]})
    plan = plan_words("table", "tiny", ["tuning.rounds=1"])
    at = plan.experiment_of(Place("mine", "rounds=3"), {}, "report", 0)
    assert at.rounds == 3
    with pytest.raises(UserError, match=r"rounds=1 sets rounds, and so does .* report.rounds"):
        plan_words("table", "tiny", ["rounds=2"])


def test_claims_of_a_row_that_is_left_out_go_with_it(write):
    claims = [
        {"better": "mine", "worse": ["gone", "local"], "margin": -1},
        {"better": "gone", "worse": "mine"},
    ]
    write(claims=claims, baselines=["local", "gone"], scales={"laptop": {"rows": {"gone": None}}})
    questions = [claim.question for claim in plan_words("table", "tiny").parsed_claims()]
    assert questions == ["mine > local - 1"]


def test_a_curve_is_columns_of_one_key(write):
    write(
        curve={"algorithm.lambda": [0, 0.5, 7]},
        claims=[{"better": "mine @ lambda=7", "worse": "mine @ lambda=0"}],
    )
    plan = plan_words("table", "tiny", ["batch_size=4"])
    assert list(plan.columns) == ["lambda=0", "lambda=0.5", "lambda=7"]
    assert plan.curve == "algorithm.lambda"
    at = plan.experiment_of(Place("mine", "lambda=0.5"), {}, "report", 0)
    assert at.algorithm.tree()["lambda"] == 0.5  # the row's algorithm says 2
    write(
        columns={"a": {}},
        scales={"laptop": {"curve": {"batch_size": [4, 8]}}, "desktop": {"columns": {"b": {}}}},
    )
    assert list(plan_words("table", "tiny").columns) == ["batch_size=4", "batch_size=8"]
    assert plan_words("table", "tiny", scale="desktop").curve is None


def test_a_gloss_may_be_of_a_point_of_a_curve(write):
    write(curve={"algorithm.lambda": [0, 7]}, glosses={"lambda=7": "the paper's"})
    assert plan_words("table", "tiny").glosses == {"lambda=7": "the paper's"}


def test_a_row_sets_what_it_does_not_tune(write):
    rows = {"mine": {"algorithm": "fedproto", "set": {"lr": 0.5}, "space": {"lr": None}}}
    write(rows=rows)
    at = plan_words("table", "tiny").experiment_of(Place("mine", "all"), {}, "report", 0)
    assert at.lr == 0.5


def test_where_less_is_better_methods_are_claimed_to_have_less(write):
    write(metrics=["train_loss", "local_accuracy"], choose="local_accuracy")
    (claim,) = plan_words("table", "tiny").parsed_claims()
    assert (claim.better.row, claim.worse.row) == ("local", "mine")  # better is what is larger


def test_a_row_may_measure_another_metric(write):
    rows = {"mine": {"algorithm": "fedproto", "metrics": {"local_accuracy": "global_accuracy"}}}
    write(rows=rows)
    plan = plan_words("table", "tiny")
    assert plan.chosen_by("mine") == "validation/global_accuracy"
    assert plan.chosen_by("local") == "validation/local_accuracy"


def test_a_tables_plugin_is_used_by_the_rows_that_name_it_and_kept_with_its_text(write, plugin):
    write(rows={"doubtful": None})
    plan = plan_words("table", "tiny", plugins=["mine.py"])
    plugin.unlink()
    again = StudyPlan.model_validate_json(plan.model_dump_json())
    for row, name in (("doubtful", "doubtful"), ("local", "local")):
        found = again.experiment_of(Place(row, "all"), {}, "report", 0)
        assert found.algorithm.name == name
        assert [plugin.module for plugin in found.plugins] == ["mine"] * (row == "doubtful")
    assert plan_words("table", "tiny", ["plugins=null"], plugins=[]).base.get("plugins") is None


def test_a_plan_survives_its_file(write):
    write(
        paper={"source": "a paper", "numbers": {"mine": [12.5, 0.5]}},
        claims=[{"better": "mine", "worse": "local"}],
    )
    plan = plan_words("table", "tiny")
    assert StudyPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.paper_of("mine", "all") == (12.5, 0.5)
    assert plan.paper_of("local", "all") is None


def test_validation_images_are_held_out_where_the_experiment_does_not_say(write, here):
    write()
    assert plan_words("table", "tiny").experiment_of(
        Place("mine", "all"), {}, "report", 0
    ).data.validation_fraction == pytest.approx(0.2)
    write(set={FRACTION: 0.4})
    plan = plan_words("table", "tiny")
    found = plan.experiment_of(Place("mine", "all"), {}, "report", 0)
    assert found.data.validation_fraction == 0.4
    write(report={"seeds": [0, 1], "select": "test"})
    plan = plan_words("table", "tiny")
    found = plan.experiment_of(Place("mine", "all"), {}, "report", 0)
    assert found.data.validation_fraction is None
    assert plan.chosen_by("mine") == "local_accuracy"
    assert found.report.select == "test"
    write()
    assert plan_words("table", "tiny", ["report.select=test"]) == plan


def test_a_scale_leaves_rows_out_and_their_claims(write):
    rows = {"mine": None, "other": "fedavg"}
    rows["mine"] = {"algorithm": "fedproto"}
    write(
        rows=rows,
        claims=[
            {"better": "mine", "worse": "other", "margin": 1},
            {"better": "mine", "worse": "local"},
        ],
        scales={"laptop": {"rows": {"other": None, "mine": {"set": {"batch_size": 4}}}}},
    )
    plan = plan_words("table", "tiny")
    assert list(plan.rows) == ["mine", "local"]
    assert plan.rows["mine"].set == {"batch_size": 4}
    assert plan.rows["mine"].algorithm == "fedproto"
    assert [claim.question for claim in plan.parsed_claims()] == ["mine > local"]


def test_a_row_has_axes_of_its_own_and_without_the_tables(write):
    rows = {"mine": {"algorithm": "fedproto", "space": {"algorithm.lambda": {"grid": [1, 7]}}}}
    rows["plain"] = {"algorithm": "local", "space": {"lr": None}}
    write(rows=rows, tuning={"configurations": 4})
    plan = plan_words("table", "tiny")
    assert set(plan.rows["mine"].space) == {"lr", "algorithm.lambda"}
    assert plan.rows["plain"].space == {}


def test_a_control_explains_the_first_row_unless_it_names_another(write):
    rows = {
        "mine": {"algorithm": "fedproto"},
        "other": {"algorithm": "fedavg"},
        "null": {"algorithm": "local", "control": "that prototypes help"},
        "second": {"algorithm": "local", "control": "that means help", "of": "other"},
    }
    write(rows=rows)
    plan = plan_words("table", "tiny")
    assert [plan.rows[name].of for name in rows] == [None, None, "mine", "other"]


def test_an_empty_list_of_claims_claims_nothing(write):
    write(claims=[])
    assert plan_words("table", "tiny").parsed_claims() == []


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


def test_an_entry_is_a_claim_for_each_worse_side_and_column():
    claims = parsed(
        {"better": "a", "worse": ["b", "a @ x"], "on": "each", "metric": "m", "than": "n"}
    )
    assert [claim.question for claim in claims] == [
        "a @ x: m > n", "a @ y: m > n", "a @ x: m > n", "a @ y: m > n"
    ]  # fmt: skip
    assert [str(claim.worse) for claim in claims] == ["b @ x", "b @ y", "a @ x", "a @ x"]


@pytest.mark.parametrize(
    "entries",
    [
        [{"better": "a", "worse": "b"}, {"better": "a", "worse": "b", "source": "again"}],
        [
            {"better": "a @ x", "worse": "b @ x"},
            {"better": "a @ y", "worse": "b @ y"},
            {"better": "a", "worse": "b", "on": "each"},
        ],
        [{"better": "a", "worse": "b", "on": "x"}, {"better": "a @ x", "worse": "b @ x"}],
    ],
)
def test_a_claim_that_is_written_twice_is_one_with_the_first_source(entries):
    entries = [{"source": str(n), **entry} for n, entry in enumerate(entries)]
    found = parsed(*entries)
    assert found == parsed(*entries[: len(found)])


def test_claims_that_differ_stay_as_many():
    entries = [
        {"better": "a", "worse": "b"},
        {"better": "a", "worse": "b", "margin": 1},
        {"better": "a", "worse": "b", "metric": "n"},
        {"better": "a", "worse": "b", "than": "n"},
        {"better": "b", "worse": "a", "margin": -2},
        {"better": "a @ x", "worse": "b @ y"},
        {"better": "a @ y", "worse": "b @ x"},
    ]
    assert len(parsed(*entries)) == len(entries)


def test_a_column_is_not_compared_with_a_mean_over_columns():
    entry = {"better": "a @ x", "worse": "b"}
    with pytest.raises(UserError, match=r"compares one column with a mean over all columns; name"):
        parsed(entry)
    for columns, on in ((["x", "y"], "x"), (["x"], "mean")):
        (claim,) = parsed({**entry, "on": on}, columns=columns)
        assert (claim.better.column, claim.worse.column) == ("x", "x")


# --- what is shipped ------------------------------------------------------------------------------


def test_data_in_another_place_is_another_run(write, here):
    (here / "here.yaml").write_text(dump_yaml({"extends": "fedavg_digits"}))
    write()
    plan = plan_words("table", "tiny")
    experiment = plan.experiment_of(Place("mine", "all"), {}, "report", 0)
    moved = experiment.model_copy(
        update={"data": experiment.data.model_copy(update={"root": "/elsewhere"})}
    )
    assert experiment.identity() == moved.identity()
    assert store_key(experiment) != store_key(moved)
    other = experiment.model_copy(update={"workers": 3, "name": "other"})
    assert store_key(experiment) == store_key(other)
