"""Scale `printed`: the paper's own protocol, cell by cell beside the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from commands import plan_words
from pretended_runs import page_of

from fedray.base.errors import UserError
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


@pytest.fixture
def printed(write):
    """`printed(scale entry, words)`: the plan of the table at scale printed."""

    def printed(own=None, words=(), **changes):
        scales = {**TABLE["scales"], **({} if own is None else {"printed": own})}
        write(**{**TABLE, "scales": scales, **changes})
        return plan_words("table", "tiny", words, scale="printed")

    return printed


def test_nothing_is_tuned_held_out_or_claimed(printed):
    plan = printed()
    assert list(plan.rows) == ["mine", "base", "follower"]
    assert plan.claims == []
    assert plan.report.seeds == [0, 1, 2]
    for row in plan.rows:
        assert plan.configurations(row) == [{}]
        run = plan.experiment_of(Place(row, "Dir(1)"), {}, "report", 0)
        assert (run.lr, run.data.validation_fraction) == (0.01, None)
        assert (
            run.local_epochs
            == plan.experiment_of(Place("mine", "Dir(1)"), {}, "report", 0).local_epochs
        )
    assert (
        plan.experiment_of(Place("base", "Dir(1)"), {}, "report", 0).optimizer.params.momentum
        == 0.9
    )


@pytest.mark.parametrize(
    ("table", "seeds"),
    [("fedtsp_table1", 3), ("fedglcl_table1", 3), ("fedglcl_table10", 1), ("fedmgp_table9", 1)],
)
def test_seeds_are_those_that_the_paper_reports(table, seeds):
    assert len(plan_words("table", table, scale="printed").report.seeds) == seeds


def test_the_round_is_chosen_as_the_experiment_says(printed):
    assert printed().select == "validation"
    assert printed({"report": {"select": "test"}}).select == "test"
    assert printed(experiment="fedtsp_cifar10_paper").select == "test"


def test_a_file_states_only_what_differs(printed):
    plan = printed({"set": {"rounds": 7}, "rows": {"mine": {"set": {"lr": 0.5}}, "follower": None}})
    assert list(plan.rows) == ["mine", "base"]
    run = plan.experiment_of(Place("mine", "Dir(1)"), {}, "report", 0)
    assert (run.lr, run.rounds) == (0.5, 7)
    assert (
        plan.experiment_of(Place("base", "Dir(1)"), {}, "report", 0).optimizer.params.momentum
        == 0.9
    )


def test_every_round_is_tested_unless_the_file_says_otherwise(printed):
    paper = {**TABLE["scales"]["paper"], "set": {"lr": 0.01, "eval_every": 5}}
    for own, every in ((None, 1), ({"set": {"eval_every": 2}}, 2)):
        plan = printed(scales={"paper": paper, **({"printed": own} if own else {})})
        assert plan.experiment_of(Place("mine", "Dir(1)"), {}, "report", 0).eval_every == every


def test_a_control_of_which_the_paper_has_a_number_stays(printed):
    numbers = {**TABLE["paper"]["numbers"], "null": 12.5}
    plan = printed(paper={**TABLE["paper"], "numbers": numbers}, glosses={"null": "no exchange"})
    assert plan.rows["null"].control is None
    assert plan.paper_of("null", "Dir(1)") == (12.5, None)
    assert "null" not in printed(glosses={"null": "no exchange"}).glosses


def test_a_control_that_the_entry_names_stays(printed):
    plan = printed({"rows": {"null": {}}})
    assert plan.rows["null"].control is None
    assert plan.configurations("null") == [{}]


def test_images_that_a_table_adds_to_hold_them_out_are_not_added(printed):
    """The table takes more images per class and a fraction; the paper what the experiment says."""
    partition = {"data.partition": "class_chunks", "data.shots": 6}
    paper = {**TABLE["scales"]["paper"], "set": {"lr": 0.01, **partition}}
    study = {"set": {"data.validation_fraction": 0.5}, "columns": {"all": {}}}
    for own, shots in ((None, None), ({"set": {"data.shots": 4}}, 4)):
        scales = {"paper": paper, **({"printed": own} if own else {})}
        run = printed(scales=scales, **study).experiment_of(Place("mine", "all"), {}, "report", 0)
        assert (run.data.shots, run.data.validation_fraction) == (shots, None)


def test_columns_of_the_entry_replace_a_curve(printed):
    curve = {"columns": {}, "curve": {"data.partition.alpha": [0.1, 1]}}
    assert list(printed(**curve).columns) == ["alpha=0.1", "alpha=1"]
    own = {"columns": {"Dir(0.3)": {"data.partition.alpha": 0.3}}}
    assert list(printed(own, **curve).columns) == ["Dir(0.3)"]


def test_rows_may_be_picked_at_every_scale(write):
    write(**TABLE)
    plan = plan_words("table", "tiny", scale="printed", rows=["base"])
    assert list(plan.rows) == ["base"]
    plan = plan_words("table", "tiny", scale="laptop", rows=["mine"])
    assert list(plan.rows) == ["mine"]
    assert plan.claims == []
    with pytest.raises(UserError, match="table tiny: there is no row 'bse'"):
        plan_words("table", "tiny", rows=["bse"])


def test_a_study_without_a_paper_scale_has_none(write):
    write(**{**TABLE, "scales": {"laptop": {}}})
    with pytest.raises(UserError, match="has no printed scale, because it has no paper scale"):
        plan_words("table", "tiny", scale="printed")
    write(**TABLE)
    with pytest.raises(UserError, match="no desktop scale, only laptop, paper, printed"):
        plan_words("table", "tiny", scale="desktop")


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
    write(paper={**paper, "rows": {"mine": "Nobody"}})
    with pytest.raises(UserError, match=r"paper\.rows\.mine: fedtsp, Table 5.*'Nobody'"):
        plan_words("table", "tiny")


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
