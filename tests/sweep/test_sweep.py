"""Sweeps: what is refused, what Optuna sees, and small real ones through Ray and MLflow."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console

from fedray.config import dump_yaml
from fedray.errors import UserError
from fedray.files import results_home
from fedray.records import Round, RunFolder, Traffic
from fedray.render.terminal import print_sections
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.sweep import command, main
from fedray.sweep.command import as_it_is_now, begin_or_resume, hold, parser
from fedray.sweep.ledger import Ledger, unfinished
from fedray.sweep.seeds import merge, objective_of
from fedray.sweep.show import best_command, by_axis, table
from fedray.sweep.spec import (
    SweepPlan,
    check_configurations,
    folder_name,
    grid,
    parse_axis,
    plan_sweep,
    read_sweep,
)

ROOT = Path(__file__).parents[2]
EXPERIMENT = {
    "name": "tiny",
    "algorithm": "fedproto",
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "workers": 1,
    "data": {"clients": 3, "samples": 200, "partition": {"name": "dirichlet", "alpha": 1.0}},
    "model": {"feature_dim": 16},
    "report": {"select": "test"},
}
SWEEP = {
    "answers": "nothing",
    "space": {"algorithm.lambda": {"grid": [0, 1]}},
    "scales": {"laptop": {"experiment": "tiny.yaml"}},
}
TOGETHER = {"rounds, lr": {"grid": [[1, 0.1], [1, 0.2], [2, 0.3]]}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with tiny.yaml and a folder of sweeps; results and MLflow beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tune").mkdir()
    (tmp_path / "tiny.yaml").write_text(dump_yaml(EXPERIMENT))
    return tmp_path


def write(here: Path, name: str = "tiny", **changes: object) -> Path:
    """Write a sweep; `changes` replace its keys."""
    path = here / "tune" / f"{name}.yaml"
    path.write_text(dump_yaml({**SWEEP, **changes}))
    return path


SELECTED = r"report.* would choose rounds on images .*write select: test"


def laptop(**changes: object) -> dict[str, object]:
    """The scales of a sweep whose laptop scale has these keys too."""
    return {"laptop": {"experiment": "tiny.yaml", **changes}}


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"serach": "grid"}, "unknown key 'serach' in sweep tiny. Did you mean 'search'?"),
        ({"search": "gird"}, "sweep tiny.search: .*'grid', 'tpe'"),
        ({"space": {}}, "space is empty; name what is swept"),
        ({"space": {"lr": {"gird": [1]}}}, "space.lr: there is no 'gird'. Did you mean 'grid'?"),
        ({"space": {"lr": [0.1]}}, "space.lr is .*expected one of grid, choice"),
        ({"space": {"lr": {"grid": []}}}, r"space.lr.grid is \[\], expected a list"),
        ({"space": {"lr": {"grid": [1, 1]}}}, "lists a value twice"),
        ({"space": {"lr": {"uniform": [0, 1]}}}, "search: grid needs lists, and space.lr is unif"),
        ({"search": "tpe", "space": {"lr": {"uniform": [1, 0]}}}, "expected .lowest, highest"),
        ({"search": "tpe", "space": {"lr": {"loguniform": [0, 1]}}}, "expected more than 0"),
        ({"search": "tpe", "space": {"lr": {"randint": [0, 1.5]}}}, "two whole numbers"),
        ({"search": "tpe", "space": {"workers": {"choice": [1, 2]}}}, "use search: grid"),
        ({"search": "tpe", "space": {"wire": {"choice": [{}, {"up_bits": 8}]}}}, "plain values"),
        ({"search": "cmaes"}, "cmaes walks continuous spaces, and space.algorithm.lambda is grid"),
        ({"search": "cmaes", "space": {"lr": {"uniform": [0, 1]}}}, "at least two swept keys"),
        ({"space": {"seed": {"grid": [0, 1]}}}, "seeds are not swept"),
        ({"space": {"lr, seed": {"grid": [[0.1, 0]]}}}, "seeds are not swept"),
        ({"space": {"lr, rounds": {"grid": [[0.1, 1], 2]}}}, "lists 2, expected a list of 2 .*lr,"),
        ({"space": {"lr, rounds": {"grid": [[1, 2, 3]]}}}, "one for each of lr, rounds"),
        ({"space": {"lr, rounds": {"uniform": [0, 1]}}}, "vary together in lists alone"),
        ({"space": {"lr": {"grid": [1]}, "lr, rounds": {"grid": [[1, 1]]}}}, "names lr twice"),
        (
            {"search": "tpe", "space": {"lr, rounds": {"choice": [[0.1, 1], [0.2, 2]]}}},
            "chooses between plain values",
        ),
        ({"metric": "train_loss"}, "mode: max looks for the worst train_loss, of which less is"),
        ({"mode": "min"}, "mode: min looks for the worst local_accuracy, .*set mode: max"),
        (
            {
                "space": {"lr": {"grid": [1, 2]}, "rounds": {"grid": [1, 2]}},
                "asha": {},
                "mean_over": "rounds",
            },
            "mean_over=rounds with asha would halve trials on one rounds against those on another",
        ),
        ({"seeds": [0, 0]}, r"seeds=\[0, 0\], expected different"),
        ({"seeds": []}, r"seeds=\[\], expected different"),
        ({"scales": {}}, "scales is empty"),
        ({"scales": {"desk": {"experiment": "tiny.yaml"}}}, "'desk' is neither laptop nor paper"),
        ({"scales": laptop(sed={})}, "unknown key 'sed' in sweep tiny.scales.laptop.*seeds"),
        ({"scales": laptop(experiment="tiny_digits")}, "there is no experiment 'tiny_digits'"),
        ({"scales": laptop(set={"report.select": "test"})}, SELECTED),
        ({"scales": laptop(set={"report": {"select": "test"}})}, SELECTED),
        ({"space": {"report.select": {"grid": ["validation", "test"]}}}, SELECTED),
        ({"space": {"lr, report.select": {"grid": [[0.1, "test"]]}}}, SELECTED),
        ({"scales": laptop(space={"report.select": {"grid": ["test"]}})}, SELECTED),
        ({"scales": laptop(set={"seed": 3})}, r"laptop\.set: seed is a sweep's; write seeds: "),
        ({"metric": "local_acuracy"}, "no metric 'local_acuracy'. Did you mean 'local_accuracy'"),
        ({"columns": ["global_acuracy"]}, "no metric 'global_acuracy'. Did you mean"),
        ({"space": {"data.root": {"grid": [1, "a"]}}}, "data.root=1 is no folder's name"),
        ({"scales": laptop(set={"runds": 3})}, "unknown key 'runds' .*'rounds'"),
        ({"space": {"algorithm.lamda": {"grid": [1]}}}, "unknown key 'lamda' in algorithm.*lambda"),
        (
            {"space": {"algorithm.lambda": {"grid": [1, -1]}}},
            "lambda=-1: algorithm.lambda: input should be greater than or equal to 0, found -1",
        ),
        (
            {"search": "tpe", "space": {"algorithm.lambda": {"uniform": [-1, 1]}}},
            "lambda=-1: algorithm.lambda: input should be greater than or equal to 0, found -1",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence_and_nothing_starts(here, capsys, changes, message):
    write(here, **changes)
    assert main(["tiny"]) == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert printed.count("\n") == 1
    assert not (here / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a sweep: .*tiny"),
        (["tinny"], "there is no sweep 'tinny'. Did you mean 'tiny'?"),
        (["tiny", "--scale", "paper"], "sweep tiny has no paper scale, only laptop"),
        (["tiny", "rounds"], "'rounds' is not key=value"),
        (["tiny", "seed=0,a"], r"seeds=\[0, 'a'\], expected different whole numbers"),
        (["tiny", "seed=0,0"], r"seeds=\[0, 0\], expected different whole numbers"),
        (["tiny", "seed=-1"], r"seeds=\[-1\], expected different whole numbers"),
        (["tiny", "algorithm.lambda=3"], "algorithm.lambda is what sweep tiny varies; leave"),
        (["tiny", "algorithm={name: fedproto, lambda: 3}"], "algorithm.lambda is what sweep tiny"),
        (["together", "lr=3"], "lr is what sweep together varies; leave lr=3 out"),
        (["tiny", "algorithm=local"], "unknown key 'lambda' in algorithm"),
        (["tiny", "data.clients=5000"], "5000 clients"),
        (["tiny", "data.source=parquet", "data.root=/nowhere"], "data.root=/nowhere is not"),
        (["tiny", "--resume"], "no sweep below .*tiny is unfinished; start without --resume"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_nothing_starts(here, capsys, arguments, message):
    write(here)
    write(here, "together", space=TOGETHER)
    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (here / "results").exists()


def test_a_partition_that_cannot_be_made_is_found_before_a_trial_starts(here, capsys, monkeypatch):
    monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: [{"CPU": 2.0, "GPU": 0.0}])
    write(here, space={"data.clients": {"grid": [3, 5000]}})
    assert main(["tiny"]) == 2
    assert re.search("clients=5000: .*clients", capsys.readouterr().err)
    assert not (here / "results").exists()


def test_several_nodes_need_a_tracking_server(monkeypatch):
    from fedray.sweep.command import check_tracking

    check_tracking(1)
    with pytest.raises(UserError, match=r"2 nodes, and sqlite:.* set MLFLOW_TRACKING_URI"):
        check_tracking(2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    check_tracking(2)


def test_a_folder_is_used_by_one_sweep_at_a_time(here, capsys):
    with (
        hold(here / "home"),
        pytest.raises(UserError, match="belongs to a command that is still running"),
        hold(here / "home", wait_seconds=0.1),
    ):
        pass


def test_a_folder_that_cannot_be_written_is_refused_before_ray_is_started(
    here, capsys, monkeypatch
):
    monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: pytest.fail("started"))
    write(here)
    (here / "file").touch()
    assert main(["tiny", "--out", "file/home"]) == 2
    assert re.search("the folder .*home cannot be written .*--out", capsys.readouterr().err)
    with pytest.raises(UserError, match="cannot be written"), hold(here / "file"):
        pass


def test_two_sweeps_begun_in_the_same_second_have_a_folder_each(here, monkeypatch):
    write(here)
    monkeypatch.setattr(command, "stamp", lambda: "now")
    monkeypatch.setattr(command, "connect_cluster", lambda *_, **__: 1)
    monkeypatch.setattr(command, "prepare", lambda _: None)
    monkeypatch.setattr(command, "run", lambda *_, **__: 0)
    assert [main(["tiny"]), main(["tiny"])] == [0, 0]
    homes = sorted((here / "results" / "tiny").iterdir())
    assert [home.name for home in homes] == ["now", "now-2"]


def test_an_invocation_is_fetched_where_none_is_here(here, monkeypatch):
    """What another machine may be running is not taken up instead of what was begun here."""
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.setenv("FEDRAY_RESULTS", f"file://{here}/bucket")
    write(here)
    ledger = Ledger(here / "bucket" / "tiny" / "1", plan_sweep("tiny"))
    ledger.home.mkdir(parents=True)
    ledger.write()
    below = results_home() / "tiny"
    assert command.begun_folder(None, below) == below / "1"
    shutil.copytree(ledger.home, here / "bucket" / "tiny" / "2")
    assert command.begun_folder(None, below) == below / "1"
    assert command.begun_folder(below / "2", below) == below / "2"


def test_only_what_was_started_is_resumed(here, capsys):
    write(here, scales=laptop(set={"rounds": 4}))
    ledger = Ledger(here / "results" / "tiny" / "one", plan_sweep("tiny"))
    ledger.add(0, {"algorithm.lambda": 0})
    ledger.home.mkdir(parents=True)
    ledger.write()
    assert unfinished(here / "results" / "tiny") == ledger.home
    assert main(["tiny", "--resume", "rounds=5"]) == 2
    assert "was started with set={'rounds': 4}, now {'rounds': 5}" in capsys.readouterr().err
    assert main(["tiny", "--out", str(ledger.home)]) == 2
    assert "already holds a sweep; go on with --resume" in capsys.readouterr().err
    assert main(["other", "--resume", "--out", str(ledger.home)]) == 2
    assert "holds sweep tiny, not other" in capsys.readouterr().err
    ledger.status = "finished"
    ledger.write()
    assert main(["tiny", "--resume", "--out", str(ledger.home)]) == 2
    assert "is finished; start without --resume" in capsys.readouterr().err


def test_trials_of_other_images_than_there_are_now_are_not_ranked_with_new_ones(here, capsys):
    write(here)
    ledger = Ledger(here / "results" / "tiny" / "one", plan_sweep("tiny"))
    trial = ledger.add(0, {"algorithm.lambda": 0})
    trial.status, trial.objective = "finished", 0.5
    ledger.add(1, {"algorithm.lambda": 1})
    seed = ledger.plan.seeds[0]
    folder = RunFolder(ledger.home / trial.name / f"seed_{seed}")
    alone(ledger.plan, trial.config, seed, folder.path)
    ledger.write()
    resume = parser().parse_args(["tiny", "--resume"])
    assert begin_or_resume(resume).left == 1
    experiment = ledger.plan.experiment_of(trial.config, seed)
    other = replace(folder.read_head(), identity=experiment.identity("f" * 64))
    folder.write_head(other)
    assert main(["tiny", "--resume"]) == 2
    error = capsys.readouterr().err
    assert "1 finished runs were made with other images, or other files " in error
    assert str(folder.path) in error


@pytest.mark.parametrize("damaged", ["0.5", "finished"])
def test_a_ledger_that_was_damaged_is_not_read(here, damaged):
    write(here)
    ledger = Ledger(here / "one", plan_sweep("tiny"))
    trial = ledger.add(0, {"algorithm.lambda": 0})
    trial.status, trial.objective = "finished", 0.5
    ledger.home.mkdir()
    ledger.write()
    assert Ledger.read(ledger.home).best.objective == 0.5
    file = ledger.home / "sweep.json"
    whole = file.read_text()
    file.write_text(whole.replace(damaged, {"0.5": "0.9"}.get(damaged, "stopped")))
    with pytest.raises(UserError, match=r"sweep\.json cannot be read: .*does not fit its checksum"):
        Ledger.read(ledger.home)
    tree = json.loads(whole)
    del tree["checksum"]
    file.write_text(json.dumps(tree))  # as an earlier version wrote it
    assert Ledger.read(ledger.home).best.objective == 0.5


def test_a_sweep_that_is_killed_while_it_concludes_can_be_resumed(here, monkeypatch):
    from fedray.sweep import command

    write(here)
    ledger = Ledger(here / "results" / "tiny" / "one", plan_sweep("tiny"))
    ledger.add(0, {"algorithm.lambda": 0}).status = "finished"
    ledger.home.mkdir(parents=True)

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "conclude", killed)
    with pytest.raises(KeyboardInterrupt):
        command.run(ledger, 1, tracks=False)
    assert Ledger.read(ledger.home).status == "running"
    monkeypatch.setattr(command, "conclude", lambda *args: 0)
    assert command.run(ledger, 1, tracks=False) == 0
    assert Ledger.read(ledger.home).status == "finished"


def test_data_root_is_absolute_for_other_machines(here, monkeypatch):
    (here / "images").mkdir()
    (here / "tiny.yaml").write_text(dump_yaml({"data": {"source": "parquet", "root": "images"}}))
    write(here)
    assert plan_sweep("tiny").base["data"]["root"] == str(here / "images")
    (here / "others").mkdir()
    assert plan_sweep("tiny", ["data.root=others"]).set == {"data.root": str(here / "others")}


# --- questions and grids -------------------------------------------------------------------------


def test_the_command_line_overrides_the_scale_and_seed_replaces_seeds(here):
    write(here, seeds=[0, 1], scales=laptop(set={"rounds": 4, "lr": 0.1}))
    plan = plan_sweep("tiny", ["rounds=3", "seed=5"])
    assert (plan.seeds, plan.set) == ([5], {"lr": 0.1, "rounds": 3})
    for several in ("seed=5,0,7", "seed=[5, 0, 7]"):
        assert plan_sweep("tiny", [several]).seeds == [5, 0, 7]
    experiment = plan.experiment_of({"algorithm.lambda": 2}, 5)
    assert (experiment.rounds, experiment.lr, experiment.seed) == (3, 0.1, 5)
    assert experiment.algorithm.params == {"lambda": 2, "proto_agg": "weighted"}
    assert SweepPlan.model_validate_json(plan.model_dump_json()) == plan


def test_a_scale_has_columns_of_its_own(here):
    scales = {
        "laptop": {"experiment": "tiny.yaml"},
        "paper": {"experiment": "tiny.yaml", "columns": ["accuracy_sketch"]},
    }
    write(here, columns=["accuracy_amazon"], scales=scales)
    assert plan_sweep("tiny").columns == ["accuracy_amazon"]
    assert plan_sweep("tiny", scale="paper").columns == ["accuracy_sketch"]


def test_a_grid_has_every_combination_and_a_part_of_it_both_ends():
    axes = [parse_axis("a", {"grid": [1, 2, 3]}), parse_axis("b", {"choice": ["x", "y"]})]
    every = grid(axes)
    assert len(every) == 6
    assert every[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert grid(axes, 99) == every
    some = grid(axes, 3)
    assert len(some) == 3
    assert (some[0], some[-1]) == (every[0], every[-1])


def test_keys_that_vary_jointly_are_one_dimension(here):
    write(here, space={"algorithm.lambda": {"grid": [0, 1]}, **TOGETHER})
    plan = plan_sweep("tiny")
    assert plan.keys == ["algorithm.lambda", "rounds", "lr"]
    configs = check_configurations(plan)
    assert configs == [
        {"algorithm.lambda": weight, "rounds": rounds, "lr": lr}
        for weight in (0, 1)
        for rounds, lr in ((1, 0.1), (1, 0.2), (2, 0.3))
    ]
    experiment = plan.experiment_of(configs[-1], 0)
    assert (experiment.rounds, experiment.lr) == (2, 0.3)
    assert folder_name(3, configs[-1]) == "trial_00003_lambda=1,rounds=2,lr=0.3"
    assert plan.some_experiment().lr == 0.1
    assert by_axis(plan, configs[-1]) == {"algorithm.lambda": 1, "rounds, lr": "2, 0.3"}
    assert SweepPlan.model_validate_json(plan.model_dump_json()) == plan


def test_of_a_range_the_ends_are_checked(here):
    write(here, search="tpe", space={"lr": {"loguniform": [0.01, 0.1]}, "rounds": {"choice": [1]}})
    assert check_configurations(plan_sweep("tiny")) == [
        {"lr": 0.01, "rounds": 1},
        {"lr": 0.1, "rounds": 1},
        {"lr": 0.01, "rounds": 1},
    ]


def test_folders_distinguish_configurations():
    assert folder_name(3, {"algorithm.lambda": 7}) == "trial_00003_lambda=7"
    assert folder_name(0, {"a.x": 0.25, "b.x": "p q"}) == "trial_00000_a.x=0.25,b.x=p_q"


def test_installed_sweeps_are_found_next_to_the_package(here):
    assert read_sweep(ROOT / "tune" / "fedtsp_lambda.yaml").search == "grid"
    assert plan_sweep("fedtsp_lambda").sweep == "fedtsp_lambda"


# --- seeds and objectives ------------------------------------------------------------------------


def record(round_: int, accuracy: float | None, **metrics: float) -> Round:
    measured = {} if accuracy is None else {"local_accuracy": accuracy}
    traffic = Traffic({"weights": 10}, {"weights": 10})
    return Round(round_, 1.0, {**measured, **metrics}, {0: 1.0}, traffic, traffic)


def test_seeds_are_averaged_and_their_spread_is_kept():
    merged = merge([record(1, 0.5, tau=0.1), record(1, 0.7)], "local_accuracy")
    metrics, mean = merged.mean.metrics, merged.mean
    assert metrics["local_accuracy"] == pytest.approx(0.6)
    assert metrics["local_accuracy_seed_std"] == pytest.approx(0.02**0.5)
    assert set(metrics) == {"local_accuracy", "local_accuracy_seed_std"}
    assert (mean.up.total_bytes, mean.up.bytes, mean.seconds) == (10, {"weights": 10}, 2)
    assert merged.by_seed == [0.5, 0.7]


def test_the_objective_is_the_best_round_or_the_last(here):
    write(here)
    best = plan_sweep("tiny")
    rows = [merge([record(r, a)], "local_accuracy") for r, a in enumerate([0.1, 0.6, 0.6, None])]
    assert objective_of(rows, best).rounds == [1]
    assert objective_of(rows, best.model_copy(update={"mode": "min"})).value == 0.6
    assert objective_of(rows, best.model_copy(update={"at": "final"})).rounds == [2]
    assert objective_of(rows[3:], best) is None


def test_the_objective_is_the_mean_of_the_seeds_own_best_as_in_a_report(here):
    write(here, seeds=[0, 1])
    pairs = [(1.0, 1.0), (0.1, 0.9), (0.5, 0.3)]  # the untrained model is no candidate
    rows = [merge([record(r, a) for a in pair], "local_accuracy") for r, pair in enumerate(pairs)]
    found = objective_of(rows, plan_sweep("tiny"))
    assert found.value == pytest.approx(0.7)
    assert found.std == pytest.approx(0.08**0.5)
    assert found.rounds == [2, 1]


def test_the_table_fits_80_columns_and_shows_failures(here):
    space = {key: {"grid": [1]} for key in ("algorithm.lambda", "lr", "batch_size", "local_epochs")}
    write(here, space=space, seeds=[0, 1])
    ledger = Ledger(here, plan_sweep("tiny"))
    for number in range(2):
        trial = ledger.add(number, dict.fromkeys(space, 0.123456))
        trial.measure([merge([record(1, 0.5), record(1, 0.6)], "local_accuracy")], ledger.plan)
        trial.status = "finished"
    failed = ledger.add(2, dict.fromkeys(space, 1))
    failed.status, failed.reason = "failed", "client 0, round 1: the loss became nan; " + "x" * 80
    trials = table(ledger)
    assert trials.rows[0][0] == "* 0"
    assert trials.rows[0][5].startswith("55.00 ± ")
    assert trials.rows[2][5] == "failed"
    assert trials.items == [f"trial 2 failed: {failed.reason}"]
    file = io.StringIO()
    print_sections([trials], Console(file=file, width=80))
    assert max(map(len, file.getvalue().splitlines())) <= 80


def test_the_best_configuration_is_a_command_that_resolves(here):
    from fedray.runtime.resolve import resolve

    write(here, scales=laptop(set={"data": {"clients": 2}, "text": {"template": "a {label}"}}))
    plan = plan_sweep("tiny", ["rounds=7", "seed=4"])
    config = {"algorithm.lambda": 0.30000000000000004}
    words = shlex.split(best_command(plan, config))
    assert words[:3] == ["python", "-m", "fedray.run"]
    assert resolve(words[3], words[4:]) == plan.experiment_of(config, 4)


# --- Optuna --------------------------------------------------------------------------------------


def suggestions(ledger: Ledger, objective, count: int, tell: bool = True) -> list[dict]:
    """Ask the search for `count` trials one after the other, as Ray Tune does."""
    from fedray.sweep.search import OptunaTrials

    search = OptunaTrials(ledger)
    found = []
    for index in range(count):
        given = search.suggest(f"ray{index}")["trial"]
        found.append(given)
        if not tell:
            continue
        trial = ledger.trials[given["number"]]
        trial.objective, trial.status = objective(trial.config), "finished"
        result = {"objective": trial.objective, "training_iteration": 1}
        search.on_trial_complete(f"ray{index}", result)
    return found


SPACES = {
    "tpe": {"lr": {"loguniform": [0.01, 1]}, "algorithm.lambda": {"choice": [0, 1, 5]}},
    "random": {"lr": {"uniform": [0.01, 1]}, "local_epochs": {"randint": [1, 4]}},
    "cmaes": {"lr": {"uniform": [0.01, 1]}, "algorithm.lambda": {"uniform": [0, 10]}},
}


@pytest.mark.parametrize("search", SPACES)
def test_a_resumed_search_asks_what_it_would_have_asked(here, search):
    write(here, search=search, space=SPACES[search], num_samples=12)
    plan = plan_sweep("tiny")

    def objective(config: dict) -> float:
        return -((config["lr"] - 0.3) ** 2) - 0.01 * list(config.values())[1]

    whole = Ledger(here, plan)
    expected = suggestions(whole, objective, 12)
    assert [trial["number"] for trial in expected] == list(range(12))
    assert len({str(trial["values"]) for trial in expected}) > 6

    (here / "cut").mkdir()
    cut = Ledger(here / "cut", plan)
    first = suggestions(cut, objective, 7)
    asked = suggestions(cut, objective, 1, tell=False)  # in flight when the driver dies
    resumed = Ledger.read(cut.home)
    assert resumed.left == 5
    assert (here / "cut" / "optuna.journal").exists()
    rest = suggestions(resumed, objective, 5)
    assert rest[0] == asked[0]
    assert first + rest == expected


@pytest.mark.parametrize("left", ["nothing", "a part"])
def test_a_search_that_was_killed_while_it_moved_its_journal_loses_nothing(here, left):
    write(here, search="cmaes", space=SPACES["cmaes"], num_samples=12)
    plan = plan_sweep("tiny")

    def objective(config: dict) -> float:
        return -((config["lr"] - 0.3) ** 2) - 0.01 * config["algorithm.lambda"]

    expected = suggestions(Ledger(here, plan), objective, 12)
    (here / "cut").mkdir()
    cut = Ledger(here / "cut", plan)
    first = suggestions(cut, objective, 7)
    cut.write()
    journal = here / "cut" / "optuna.journal"
    begin = journal.read_bytes()[:200]
    journal.replace(here / "cut" / "optuna.journal.before")
    if left == "a part":
        journal.write_bytes(begin)
    assert first + suggestions(Ledger.read(cut.home), objective, 5) == expected
    assert not (here / "cut" / "optuna.journal.before").exists()


def test_asha_lets_trials_of_more_rounds_come_to_their_end(here):
    from fedray.sweep.search import tune_config

    write(here, space={"rounds": {"grid": [1, 5, 2]}}, asha={"grace_rounds": 1})
    ledger = begin_or_resume(parser().parse_args(["tiny"]))
    _, config = tune_config(ledger, ledger.ordered, 1)
    assert config.scheduler._max_t == 5


def test_what_another_process_has_finished_meanwhile_is_not_begun_again(here):
    write(here)
    ledger = begin_or_resume(parser().parse_args(["tiny"]))
    ledger.home.mkdir(parents=True)
    ledger.write()
    stale = Ledger.read(ledger.home)
    ledger.trials[0].status = "stopped"
    ledger.write()
    assert as_it_is_now(stale).trials[0].status == "stopped"
    ledger.status = "finished"
    ledger.write()
    with pytest.raises(UserError, match="was finished by another process meanwhile"):
        as_it_is_now(stale)


def test_optuna_takes_a_failed_trial_as_failed(here):
    from optuna.trial import TrialState

    from fedray.sweep.search import OptunaTrials

    write(here, search="tpe", space=SPACES["tpe"])
    ledger = Ledger(here, plan_sweep("tiny"))
    search = OptunaTrials(ledger)
    search.suggest("a")
    search.on_trial_complete("a", {"objective": float("nan"), "failed": "it diverged"})
    assert [trial.state for trial in search._study.trials] == [TrialState.FAIL]


# --- real sweeps ---------------------------------------------------------------------------------


@pytest.fixture
def database(here, empty_database):
    """MLflow's database of `here`, which is made already."""
    (here / "results").mkdir()
    return shutil.copy(empty_database, here / "results")


@pytest.fixture(scope="module")
def ray_here():
    """One local Ray for the sweeps of this file."""
    ray = pytest.importorskip("ray")
    from fedray.runtime.cluster import connect

    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    connect(num_cpus=2)
    yield ray
    ray.shutdown()


def alone(plan: SweepPlan, config: dict, seed: int, out: Path) -> list[Round]:
    """One configuration and seed by itself, in this process."""
    experiment = plan.experiment_of(config, seed)
    session = Session(experiment, out, lambda a: SerialExecutor(a, torch.device("cpu")))
    return list(session.rounds())


def only_sweep(results: Path, name: str) -> dict:
    [path] = results.glob(f"{name}/*/sweep.json")
    return json.loads(path.read_text())


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_from_yaml_to_mlflow(here, capsys, database, ray_here):
    write(here, space={"lr": {"grid": [0.05, 0.1, 1e6]}}, seeds=[0, 1])
    assert main(["tiny", "algorithm.lambda=0.5"]) == 0
    printed = capsys.readouterr().out
    [home] = (here / "results" / "tiny").iterdir()
    sweep = json.loads((home / "sweep.json").read_text())
    assert sweep["status"] == "finished"
    assert [trial["status"] for trial in sweep["trials"]] == ["finished", "finished", "failed"]

    # two seeds in lockstep are two single runs, bit for bit
    plan = plan_sweep("tiny", ["algorithm.lambda=0.5"])
    for trial in sweep["trials"][:2]:
        runs = [alone(plan, trial["config"], s, here / f"{trial['number']}{s}") for s in (0, 1)]
        curves = [[r.metrics["local_accuracy"] for r in rounds[1:]] for rounds in runs]
        assert trial["objective"] == pytest.approx(sum(map(max, curves)) / 2, abs=1e-12)
        assert trial["best_rounds"] == [1 + curve.index(max(curve)) for curve in curves]
        assert trial["final"] == pytest.approx(sum(curve[-1] for curve in curves) / 2, abs=1e-12)
        assert trial["std"] > 0
        for seed, rounds in enumerate(runs):
            stored = RunFolder(home / trial["folder"] / f"seed_{seed}").rounds()
            assert [r.metrics for r in stored] == [r.metrics for r in rounds]
        assert 0 < trial["startup_seconds"] < trial["seconds"]
    failure = sweep["trials"][2]
    assert "client 1, round 1, step client_update: FloatingPointError" in failure["reason"]
    assert (home / failure["folder"] / "error.txt").exists()

    # what is said
    assert "laptop scale" in printed
    assert "3 trials, 2 at a time" in printed
    assert "the cluster has 2 CPU" in printed
    assert "3/3 over" in printed
    assert "failed: it diverged: client 1, round 1" in printed
    best = max(sweep["trials"][:2], key=lambda trial: trial["objective"])
    assert sweep["best"] == best["number"]
    command = f"python -m fedray.run tiny.yaml algorithm.lambda=0.5 lr={best['config']['lr']}"
    assert command in printed
    assert f"mlflow ui --backend-store-uri sqlite:///{here}/results/mlflow.db" in printed
    assert str(home) in printed
    assert (home / "sweep.png").stat().st_size > 5000
    with (home / "trials.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] * 2 + ["failed"]

    # the same in MLflow
    parent, children = runs_of(here / "results", "tiny")
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_objective"] == pytest.approx(best["objective"])
    assert len(children) == 3
    for trial in sweep["trials"]:
        run = children[trial["folder"]]
        tags = run.data.tags
        assert tags["fedray.method"] == "fedproto"
        assert (tags["scale"], tags["fedray.seed"], tags["trial"]) == (
            "laptop",
            "0,1",
            str(trial["number"]),
        )
        assert len(tags["partition_sha256"].split(",")) == 2
        if trial["status"] == "failed":
            assert run.info.status == "FAILED"
            continue
        assert run.info.status == "FINISHED"
        assert run.data.metrics["objective"] == pytest.approx(trial["objective"])
        assert steps_of(here / "results", run) == [0, 1, 2]


def runs_of(results: Path, experiment: str) -> tuple[object, dict[str, object]]:
    """The parent run of the only invocation, and its children by name."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    number = client.get_experiment_by_name(experiment).experiment_id
    runs = client.search_runs([number])
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {r.data.tags["fedray.folder"]: r for r in runs if r is not parent}
    assert {r.data.tags["mlflow.parentRunId"] for r in children.values()} == {parent.info.run_id}
    assert len(children) == len(runs) - 1
    return parent, children


def steps_of(results: Path, run: object) -> list[int]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    return [
        point.step
        for point in client.get_metric_history(run.info.run_id, "accuracy/local_accuracy")
    ]


@pytest.mark.ray
@pytest.mark.slow
def test_when_every_trial_fails_the_sweep_fails(here, capsys, ray_here):
    write(here, metric="my_number", space={"algorithm.lambda": {"grid": [1]}})
    assert main(["tiny", "rounds=1", "--no-track"]) == 1
    printed = capsys.readouterr()
    assert "no round has 'my_number'" in printed.out
    assert "no trial of tiny came through" in printed.err


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_asha_stops_by_rounds_and_tpe_learns_of_it(here, capsys, database, ray_here):
    write(
        here,
        search="tpe",
        num_samples=3,
        space={"lr": {"choice": [0.2, 1e-9]}},
        asha={"grace_rounds": 1, "reduction_factor": 2},
        scales=laptop(max_concurrent=1, set={"rounds": 3}),
    )
    assert main(["tiny", "--no-track"]) == 0
    printed = capsys.readouterr().out
    assert "note: tpe takes a trial that ASHA stops as complete" in printed
    assert "3 trials, 1 at a time" in printed
    trials = only_sweep(here / "results", "tiny")["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    rounds = {trial["status"]: trial["last_round"] for trial in trials}
    assert rounds["finished"] == 3
    assert rounds.get("stopped", 1) < 3

    # what was not tracked can be uploaded, as often as one likes
    from fedray.cli.upload import main as upload

    [home] = (here / "results" / "tiny").iterdir()
    for _ in range(2):
        assert upload([str(home)]) == 0
    parent, children = runs_of(here / "results", "tiny")
    assert parent.info.status == "FINISHED"
    for trial in trials:
        run = children[trial["folder"]]
        assert steps_of(here / "results", run) == list(range(trial["last_round"] + 1))
        ends = {"finished": "FINISHED", "stopped": "KILLED"}
        assert run.info.status == ends[trial["status"]]


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_whose_process_dies_goes_on_after_its_checkpoint(here, database, ray_here):
    write(here, scales=laptop(set={"rounds": 6, "local_epochs": 8}), seeds=[0])
    driver = psutil.Process()
    killed = []

    def kill_once() -> None:
        """Kill the first trial's actor once it has finished a round."""
        while not killed:
            if list((here / "results").glob("tiny/*/trial_*/seed_0/result.json")):
                for process in driver.children(recursive=True):
                    if process.name().startswith("ray::Implicit"):
                        killed.append(process.pid)
                        process.kill()
                        return
            time.sleep(0.02)

    from threading import Thread

    thread = Thread(target=kill_once, daemon=True)
    thread.start()
    assert main(["tiny", "--num-samples", "1"]) == 0
    thread.join(5)
    assert killed
    [trial] = only_sweep(here / "results", "tiny")["trials"]
    assert trial["status"] == "finished"
    plan = plan_sweep("tiny")
    rounds = alone(plan, trial["config"], 0, here / "alone")
    best = max(r.metrics["local_accuracy"] for r in rounds[1:])
    assert trial["objective"] == best
    _, children = runs_of(here / "results", "tiny")
    assert steps_of(here / "results", children[trial["folder"]]) == list(range(7))


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_killed_and_resumed_is_as_undisturbed(here):
    write(here, scales=laptop(set={"rounds": 5}), space={"algorithm.lambda": {"grid": [0, 1, 5]}})
    results = here / "results"
    command = [sys.executable, "-m", "fedray.sweep", "tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    first = subprocess.Popen(
        command, cwd=here, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while True:
        assert first.poll() is None
        assert time.monotonic() < deadline
        found = list(results.glob("tiny/*/sweep.json"))
        if found:
            states = [trial["status"] for trial in json.loads(found[0].read_text())["trials"]]
            begun = {path.parents[1].name for path in results.glob("tiny/*/*/*/result.json")}
            if "finished" in states and len(begun) == 3:
                break
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    [home] = (results / "tiny").iterdir()
    assert unfinished(results / "tiny") == home

    second = subprocess.run(
        [*command, "--resume"], cwd=here, env=environment, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert second.returncode == 0, second.stdout + second.stderr
    sweep = only_sweep(results, "tiny")
    assert sweep["status"] == "finished"
    plan = plan_sweep("tiny")
    for trial in sweep["trials"]:
        rounds = alone(plan, trial["config"], 0, here / f"alone{trial['number']}")
        accuracies = [r.metrics["local_accuracy"] for r in rounds[1:]]
        stored = RunFolder(home / trial["folder"] / "seed_0").rounds()
        assert [r.metrics for r in stored] == [r.metrics for r in rounds]
        assert trial["objective"] == max(accuracies)
        assert trial["best_rounds"] == [1 + accuracies.index(max(accuracies))]
    parent, children = runs_of(results, "tiny")
    assert parent.info.status == "FINISHED"
    assert len(children) == 3
    for run in children.values():
        assert run.info.status == "FINISHED"
        assert steps_of(results, run) == list(range(6))


PLACEMENT = """
import json, sys
from pathlib import Path
import ray
from ray import tune
from fedray.config import Experiment
from fedray.runtime.cluster import connect
from fedray.runtime.resources import at_a_time, preflight, trial_bundles
from fedray.sweep.warm import pool_of

def assigned(worker):
    return ray.get_runtime_context().get_assigned_resources()

def trial(config):
    experiment = Experiment(**config["experiment"])
    pool = pool_of(experiment)
    workers = ray.get([worker.__ray_call__.remote(assigned) for worker in pool.workers])
    own = ray.get_runtime_context().get_assigned_resources()
    group = ray.util.get_current_placement_group()
    pool.close()
    tune.report({"server": own, "workers": workers, "bundles": group.bundle_specs})

nodes = connect(num_cpus=4, num_gpus=2)
found = []
for keys in json.loads(sys.argv[1]):
    experiment = Experiment(**keys)
    print(preflight(experiment, nodes), file=sys.stderr)
    bundles = tune.PlacementGroupFactory(trial_bundles(experiment))
    tuner = tune.Tuner(
        tune.with_resources(trial, bundles),
        param_space={"experiment": keys},
        run_config=tune.RunConfig(storage_path=sys.argv[2], verbose=0),
    )
    metrics = tuner.fit()[0].metrics
    row = {name: metrics[name] for name in ("server", "workers", "bundles")}
    found.append({**row, "at_a_time": at_a_time(experiment, nodes)})
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_fractions_of_gpus_are_placed_as_asked(here):
    asked = [
        {"workers": 2, "cpus": 1.0, "gpus": 0.5, "server_gpus": 0.1},
        {"workers": 2, "gpus": 2.0},
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PLACEMENT, json.dumps(asked), str(here / "out")],
        env=environment, cwd=here, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shared, whole = json.loads(done.stdout.splitlines()[-1])
    assert shared["server"] == {"GPU": 0.1}
    assert shared["workers"] == [{"CPU": 0.5, "GPU": 0.2}] * 2
    assert shared["bundles"] == [{"GPU": 0.1}, {"CPU": 0.5, "GPU": 0.2}, {"CPU": 0.5, "GPU": 0.2}]
    assert shared["at_a_time"] == 4
    assert whole["server"] == {}
    assert whole["workers"] == [{"CPU": 1.0, "GPU": 1.0}] * 2
    assert whole["bundles"] == [{"CPU": 1.0, "GPU": 1.0}] * 2
    assert whole["at_a_time"] == 1
