"""Sweeps: what is refused, what a file and the command line make of it, and what is resumed."""

from __future__ import annotations

import shlex
import shutil
from itertools import product

import pytest
from pretended_runs import pretend, result_of
from ray.tune.search import Searcher
from sweeps import EXPERIMENT, carry_out, laptop, sweep, write_sweep
from written_runs import write_whole

from fedray.base.errors import UserError
from fedray.config import dump_yaml
from fedray.studies.cell import check_cells
from fedray.studies.flow import Request, go_on, run_cells, study_of
from fedray.studies.pages import write_pages
from fedray.studies.plan import StudyPlan
from fedray.studies.ready import get_ready
from fedray.studies.space import grid, parse_axis
from fedray.studies.study import DIVERGED, Study, StudyRun
from fedray.studies.trainable import trainable_of
from fedray.studies.trials import SweepOutcome
from fedray.studies.tune import (
    config_of,
    domains,
    objective_of,
    optuna_search,
    scheduler,
    spec_of,
    task_of,
)
from fedray.sweep import main

TOGETHER = {"rounds, lr": {"grid": [[1, 0.1], [1, 0.2], [2, 0.3]]}}


@pytest.fixture(autouse=True)
def _chosen_on_the_test(here):
    (here / "tiny.yaml").write_text(dump_yaml(EXPERIMENT))


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("data.clients", [3, 5000], "data.partition: 5000 clients"),
        ("data.partition.min_samples", [10, 4000], "data.partition"),
        ("data.samples", [200, 5], "data"),
    ],
)
def test_a_value_that_allows_no_partition_fails_alone(here, monkeypatch, key, values, message):
    monkeypatch.setattr("fedray.studies.ready._connect", lambda *_, **__: 1)
    write_sweep(space={key: {"grid": values}})
    study = sweep("rounds=1")
    get_ready(study, check_cells(study.plan), track=False)
    for run in study.needed.values():
        carry_out(study, run)
    [why] = study.failures.values()
    assert message in why
    assert [study.status_of(run) for run in study.needed.values()] == ["finished", "failed"]
    go_on(again := sweep("rounds=1"), study)
    assert again.failures == {}

    write_sweep(space={key: {"grid": values[1:]}})
    study = sweep("rounds=1")
    with pytest.raises(UserError, match=message):  # before Ray runs anything
        get_ready(study, check_cells(study.plan), track=False)


def test_several_nodes_need_a_tracking_server(here, monkeypatch):
    from fedray.studies.ready import check_tracking

    check_tracking(1)
    with pytest.raises(UserError, match=r"2 nodes, and sqlite:.* set MLFLOW_TRACKING_URI"):
        check_tracking(2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    check_tracking(2)


def test_a_folder_that_cannot_be_written_is_refused_before_ray_is_started(
    here, capsys, monkeypatch
):
    monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: pytest.fail("started"))
    write_sweep()
    (here / "file").touch()
    assert main(["tiny", "--out", "file/home"]) == 2
    assert "home cannot be written" in capsys.readouterr().err


# --- what is resumed ------------------------------------------------------------------------------


def begun(**changes: object) -> Study:
    """Return a sweep whose command was killed at once."""
    write_sweep(**changes)
    study = study_of(Request("sweep", "tiny"))
    study.write()
    return study


@pytest.mark.parametrize(("name", "rounds"), [*product(["rounds.jsonl", "run.json"], [1, 2])])
def test_a_stored_run_that_was_damaged_is_refused_before_a_study_starts(here, capsys, name, rounds):
    write_sweep()
    study = sweep()
    study.store = here / "results" / "store"
    run = study.ask()
    folder = study.folder(run.key)
    trial = trainable_of(task_of(study))(config_of(run, study.plan))
    while trial.step()["round"] < rounds:
        pass
    trial.cleanup()
    file = folder / name
    file.write_bytes(file.read_bytes()[:-9] + b"\n")
    assert main(["tiny", "--no-track"]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert f"remove {folder}" in error or name == "run.json"
    assert error.count("\n") == 1
    assert not (here / "results" / "tiny").exists()
    shutil.rmtree(folder)
    assert main(["tiny", "--no-track", "--plan"]) == 0


def test_a_plan_that_was_damaged_is_not_read(here):
    study = begun()
    file = study.home / "plan.json"
    file.write_text(file.read_text().replace("laptop", "labtop"))
    with pytest.raises(UserError, match=r"plan\.json.*does not fit its checksum"):
        Study.read(study.home)


def test_a_study_that_is_killed_while_it_concludes_can_be_resumed(here, monkeypatch):
    study = begun()
    pretend(study, lambda spec: "it died")

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    from fedray.studies import pages

    monkeypatch.setattr(pages, "print_pages", killed)
    with pytest.raises(KeyboardInterrupt):
        run_cells(Request("sweep", "tiny", track=False), study, 1)
    assert Study.read(study.home).status == "running"
    monkeypatch.setattr(pages, "print_pages", lambda study: None)
    assert run_cells(Request("sweep", "tiny", track=False), study, 1).code == 1
    assert Study.read(study.home).status == "failed"


@pytest.mark.parametrize("why", ["it died 4 time(s)", "OSError: No space left on device"])
def test_a_run_that_failed_is_tried_again(here, capsys, monkeypatch, why):
    from fedray.studies import pages

    monkeypatch.setattr(pages, "print_pages", lambda study: None)
    study = begun()
    pretend(study, lambda spec: why if spec.config["algorithm.lambda"] else f"{DIVERGED}: a NaN")
    run_cells(Request("sweep", "tiny", track=False), study, 1)
    said = capsys.readouterr().out
    assert "1 run(s) failed; to try again, " in said
    assert "fedray.sweep tiny --no-track" in said
    again = study_of(Request("sweep", "tiny"))
    assert again.home == study.home
    assert again.remaining == 1  # the one that diverged is not repeated


# --- plans and grids ------------------------------------------------------------------------------


def test_the_command_line_overrides_the_scale_and_seed_replaces_seeds(here):
    write_sweep(seeds=[0, 1], scales=laptop(set={"rounds": 4, "lr": 0.1}))
    study = sweep("rounds=3", "seed=5")
    assert study.plan.report.seeds == [5]
    for several in ("seed=5,0,7", "seed=[5, 0, 7]"):
        assert sweep(several).plan.report.seeds == [5, 0, 7]
    wanted = study.plan.run(study.plan.places[0], {"algorithm.lambda": 2}, "tuning", 5)
    experiment = wanted.experiment
    assert (experiment.rounds, experiment.lr, experiment.seed) == (3, 0.1, 5)
    assert experiment.algorithm.tree() == {"name": "fedproto", "lambda": 2, "proto_agg": "weighted"}
    assert StudyPlan.model_validate_json(study.plan.model_dump_json()) == study.plan


def test_a_grid_has_every_combination_and_a_part_of_it_both_ends():
    axes = [parse_axis("a", {"grid": [1, 2, 3]}), parse_axis("b", {"choice": ["x", "y"]})]
    every = grid(axes)
    assert len(every) == 6
    assert every[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert grid(axes, 99) == every
    assert grid([]) == [{}]
    some = grid(axes, 3)
    assert len(some) == 3
    assert (some[0], some[-1]) == (every[0], every[-1])


def test_keys_that_vary_jointly_are_one_dimension(here):
    write_sweep(space={"algorithm.lambda": {"grid": [0, 1]}, **TOGETHER})
    plan = sweep().plan
    configs = plan.configurations("all")
    assert configs == [
        {"algorithm.lambda": weight, "rounds": rounds, "lr": lr}
        for weight in (0, 1)
        for rounds, lr in ((1, 0.1), (1, 0.2), (2, 0.3))
    ]
    experiment = plan.run(plan.places[0], configs[-1], "tuning", 0).experiment
    assert (experiment.rounds, experiment.lr) == (2, 0.3)


def test_the_longest_runs_begin_first(here):
    write_sweep(space={"rounds": {"grid": [1, 5, 2]}})
    study, order = sweep(), []
    while (run := study.ask()) is not None:
        study.runs[run.key] = StudyRun(run)
        order.append(run.config["rounds"])
    assert order == [5, 2, 1]


def test_the_best_configuration_is_a_file_that_runs(here):
    from fedray.runtime.resolve import resolve

    write_sweep(scales=laptop(set={"data": {"clients": 2}, "name": "a {label}"}))
    study = sweep("rounds=7", "seed=4")
    pretend(study, lambda spec: [(0.1, 0.1), (0.1, 0.2 + spec.config["algorithm.lambda"] / 10)])
    study.home.mkdir()
    write_pages(study)
    words = shlex.split(SweepOutcome(study).best_command())
    assert words[:3] == ["python", "-m", "fedray.run"]
    wanted = study.plan.run(study.plan.places[0], {"algorithm.lambda": 1}, "tuning", 4)
    assert resolve(*words[3:], []).identity() == wanted.experiment.identity()


@pytest.mark.parametrize("given", [(), ("algorithm.lambda=3",)])
def test_a_sweep_over_methods_keeps_what_is_set_beside_them(here, given):
    keys = {} if given else {"set": {"algorithm.lambda": 3}}
    write_sweep(scales=laptop(**keys), space={"algorithm": {"grid": ["fedproto", "fedtgp"]}})
    study = sweep(*given)
    for config in study.plan.configurations("all"):
        spec = study.plan.run(study.plan.places[0], config, "tuning", 0)
        assert spec.experiment.tree()["algorithm"]["lambda"] == 3


# --- search ---------------------------------------------------------------------------------------

SPACE = {"lr": {"loguniform": [0.01, 1]}, "rounds, local_epochs": {"choice": [[1, 2], [2, 1]]}}


def searcher(study: Study) -> Searcher:
    """Return Optuna's sampler as `Tuner` prepares it."""
    search = optuna_search(study)
    search.set_search_properties(*objective_of(study.plan), domains(study.plan))
    return search


def searched(study: Study, count: int) -> list[dict]:
    """Return the configurations that Optuna suggests for runs that come to a planted number."""
    search, found, known = searcher(study), [], len(study.suggested)
    for number in range(count):
        config = search.suggest(str(number))
        spec = spec_of(config, study.plan)
        if number >= known:
            study.suggest(spec.config)
        found.append(spec.config)
        value = {search.metric: 1 - (spec.config["lr"] - 0.3) ** 2}
        search.on_trial_complete(str(number), result=value)
    return found


def test_optuna_begins_with_what_it_suggested_before_and_goes_on(here):
    """The same command again: finished runs end at once, and their values are told anew."""
    write_sweep(search="optuna", space=SPACE, configurations=6)
    whole = searched(sweep(home="whole"), 6)
    assert {(c["rounds"], c["local_epochs"]) for c in whole} <= {(1, 2), (2, 1)}
    assert len({repr(config) for config in whole}) == 6
    cut = sweep(home="cut")
    assert searched(cut, 4) == whole[:4]
    cut.write()
    go_on(again := sweep(home="cut"), Study.read(cut.home))
    assert (len(again.needed), again.total) == (4, 6)
    assert searched(again, 6)[:4] == whole[:4]
    assert len(again.suggested) == 6
    write_sweep(search="optuna", space={"lr": {"uniform": [0, 2]}}, configurations=6)
    go_on(other := sweep(home="cut"), Study.read(cut.home))
    assert other.suggested == []


def test_what_optuna_suggests_twice_is_one_configuration(here):
    write_sweep(search="optuna", space={"lr": {"choice": [0.1, 0.2]}}, configurations=6)
    study = sweep()
    suggested = searched(study, 6)
    assert len({config["lr"] for config in suggested}) == 2
    assert [config["lr"] for config in study.configs] == [
        *dict.fromkeys(config["lr"] for config in suggested)
    ]
    assert len(SweepOutcome(study).configs) == 2


def test_optuna_repeats_each_configuration_with_every_seed(here):
    write_sweep(
        search="optuna", space={"lr": {"uniform": [0.1, 1]}}, configurations=2, seeds=[7, 9]
    )
    study = sweep()
    search = searcher(study)
    specs = [spec_of(search.suggest(str(number)), study.plan) for number in range(4)]
    assert [spec.seed for spec in specs] == [7, 9, 7, 9]
    assert specs[0].config == specs[1].config != specs[2].config


def test_asha_lets_runs_of_more_rounds_come_to_their_end(here):
    write_sweep(space={"rounds": {"grid": [1, 5, 2]}}, asha={"grace_rounds": 1})
    assert scheduler(sweep())._max_t == 5


def test_a_run_that_asha_stopped_counts_as_it_was_then_and_stays_so(here):
    write_sweep(asha={"grace_rounds": 1})
    study = sweep()
    runs = list(study.needed.values())
    for run, curve in zip(runs, ([0.0, 0.5, 0.6], [0.0, 0.7]), strict=True):
        whole = result_of(run, [(value, value) for value in [*curve, 0.9, 0.9]])
        write_whole(study.folder(run.key), whole.until(len(curve) - 1))
        study.tell(run, is_stopped=len(curve) == 2)
    study.write()
    for each in (study, Study.read(study.home)):
        frame = SweepOutcome(each).numbers.frame
        stopped = frame[frame["row"] == "1"].iloc[0]
        assert (stopped["value"], stopped["status"]) == (70, "stopped")
    go_on(again := sweep(), Study.read(study.home))
    trial = trainable_of(task_of(again))(config_of(runs[1], study.plan))
    report = trial.step()
    assert (report["done"], report["round"]) == (True, 1)
    assert report[study.plan.chosen_by("all")] == 0.7
