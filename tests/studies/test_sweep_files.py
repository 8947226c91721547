"""Sweeps: what is refused, what a file and the command line make of it, and what is resumed."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import product
from pathlib import Path

import pytest
from commands import plan_words
from filelock import FileLock
from pretended_runs import pretend
from sweeps import EXPERIMENT, laptop, sweep, write_sweep
from written_runs import write_whole

from fedray.base.errors import UserError
from fedray.config import dump_yaml
from fedray.studies import flow
from fedray.studies.cell import check_cells
from fedray.studies.flow import Request, begin_or_resume, reload
from fedray.studies.forecast import headline, planned_cells
from fedray.studies.plan import StudyPlan
from fedray.studies.ready import get_ready
from fedray.studies.space import grid, parse_axis
from fedray.studies.study import DIVERGED, TRIAL_LOCK, End, Study, latest_unfinished
from fedray.studies.trials import best_command
from fedray.studies.tune import config_of, reports
from fedray.sweep import main

TOGETHER = {"rounds, lr": {"grid": [[1, 0.1], [1, 0.2], [2, 0.3]]}}
SELECTED = r"report.* would choose rounds on images .*write select: test"


@pytest.fixture(autouse=True)
def _chosen_on_the_test(here):
    (here / "tiny.yaml").write_text(dump_yaml(EXPERIMENT))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"serach": "grid"}, "unknown key 'serach' in sweep tiny. Valid: answers"),
        ({"search": "gird"}, "sweep tiny.tuning.search: .*'grid', 'random' or 'tpe'"),
        ({"space": {}}, "space is empty; name what is swept"),
        (
            {"space": {"lr": {"gird": [1]}}},
            "space.lr: there is no distribution 'gird'. Did you mean 'grid'?",
        ),
        ({"space": {"lr": [0.1]}}, "space.lr is .*expected one of grid, choice"),
        ({"space": {"lr": {"grid": []}}}, r"space.lr.grid is \[\], expected a list"),
        ({"space": {"lr": {"grid": [1, 1]}}}, "lists a value twice"),
        ({"space": {"lr": {"uniform": [0, 1]}}}, "search: grid needs lists, and space.lr is unif"),
        ({"search": "tpe", "space": {"lr": {"uniform": [1, 0]}}}, "expected .lowest, highest"),
        ({"search": "tpe", "space": {"lr": {"loguniform": [0, 1]}}}, "expected more than 0"),
        ({"search": "tpe", "space": {"lr": {"randint": [0, 1.5]}}}, "two whole numbers"),
        ({"search": "tpe", "space": {"workers": {"choice": [1, 2]}}}, "use search: grid"),
        ({"search": "tpe", "space": {"wire": {"choice": [{}, {"up_bits": 8}]}}}, "plain values"),
        ({"space": {"seed": {"grid": [0, 1]}}}, "seeds cannot be searched"),
        ({"space": {"lr, seed": {"grid": [[0.1, 0]]}}}, "seeds cannot be searched"),
        ({"space": {"lr, rounds": {"grid": [[0.1, 1], 2]}}}, "lists 2, expected a list of 2 .*lr,"),
        ({"space": {"lr, rounds": {"grid": [[1, 2, 3]]}}}, "one for each of lr, rounds"),
        ({"space": {"lr, rounds": {"uniform": [0, 1]}}}, "vary together only in lists"),
        ({"space": {"lr": {"grid": [1]}, "lr, rounds": {"grid": [[1, 1]]}}}, "names lr twice"),
        (
            {"asha": {"grace_rounds": 1}, "scales": laptop(set={"eval_every": 2})},
            "tuning.asha.grace_rounds=1",
        ),
        ({"asha": {}, "seeds": [0, 1]}, "tuning.asha compares single runs, not means over seeds"),
        (
            {"asha": {}, "search": "tpe", "configurations": 2},
            "use search: random, or leave asha out",
        ),
        ({"select": "nothing"}, "select: nothing needs at: final"),
        ({"tuning": {"rounds": 3}}, "tuning.rounds is for tables; set rounds"),
        ({"seeds": [0, 0]}, r"report\.seeds: expected different whole numbers.*found \[0, 0\]"),
        ({"seeds": []}, r"expected different whole numbers from 0.*found \[\]"),
        ({"scales": {}}, "scales is empty"),
        ({"rows": {"mine": "fedavg"}}, "sweep tiny: rows is for tables; leave it out"),
        ({"test": "anytime"}, "sweep tiny: test is for tables; leave it out"),
        (
            {"scales": laptop(columns={"a": {}})},
            "unknown key 'columns' in sweep tiny.scales.laptop",
        ),
        ({"scales": {"desk": {"experiment": "tiny.yaml"}}}, "'desk' is none of laptop, desktop"),
        ({"scales": {"laptop": {}}}, "experiment is missing; name the experiment that is swept"),
        ({"scales": laptop(sed={})}, "unknown key 'sed' in sweep tiny.scales.laptop"),
        ({"scales": laptop(experiment="tiny_digits")}, "there is no experiment 'tiny_digits'"),
        ({"scales": laptop(set={"report": {"select": "test"}})}, SELECTED),
        ({"space": {"report.select": {"grid": ["validation", "test"]}}}, SELECTED),
        ({"scales": laptop(set={"seed": 3})}, r"laptop\.set: a study has its own seeds; write"),
        (
            {"metrics": ["local_acuracy"]},
            "no metric 'local_acuracy'. Did you mean 'local_accuracy'",
        ),
        (
            {"metrics": ["local_accuracy", "global_acuracy"]},
            "no metric 'global_acuracy'. Did you mean",
        ),
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
    write_sweep(**changes)
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
        (["tiny", "seed=0,a"], r"seeds.* 'a'"),
        (["tiny", "seed=0,0"], r"expected different whole numbers .*found \[0, 0\]"),
        (["tiny", "seed=-1"], r"expected different whole numbers .*found \[-1\]"),
        (["tiny", "algorithm.lambda=3"], "algorithm.lambda is tuned; leave algorithm.lambda=3 out"),
        (["tiny", "algorithm={name: fedproto, lambda: 3}"], "algorithm.lambda is tuned; leave"),
        (["together", "lr=3"], "lr is tuned; leave lr=3 out"),
        (["tiny", "algorithm=local"], "unknown key 'lambda' in algorithm"),
        (["tiny", "data.source=parquet", "data.root=/nowhere"], "data.root=/nowhere is not"),
        (["tiny", "--resume"], "no sweep below .*tiny is unfinished; start without --resume"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_nothing_starts(here, capsys, arguments, message):
    write_sweep()
    write_sweep("together", space=TOGETHER)
    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (here / "results").exists()


IMPOSSIBLE = {
    "clients": ({"data.clients": [3, 5000]}, "clients=5000 seed=0: data.partition: 5000 clients"),
    "images": ({"data.partition.min_samples": [10, 4000]}, "min_samples=4000 seed=0: "),
    "samples": ({"data.samples": [200, 5]}, "samples=5 seed=0: "),
    "classes": ({"data.partition": [{"name": "iid"}, {"name": "shards", "shards_per_client": 400}]},
                "shards_per_client=400 seed=0: "),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_value_whose_partition_cannot_be_made_is_given_up_alone(here, capsys, monkeypatch, name):
    monkeypatch.setattr("fedray.studies.ready._connect", lambda *_, **__: 1)
    (((key, values),), message) = [*IMPOSSIBLE[name][0].items()], IMPOSSIBLE[name][1]
    write_sweep(space={key: {"grid": values}})
    study = sweep().look()
    get_ready(study, check_cells(study.cells), track=False)
    [why] = study.failures.values()
    assert message in why
    assert f"given up: {why}" in capsys.readouterr().out
    assert [run.status for run in study.runs.values()] == ["pending", "failed"]
    study.forget_failures()
    assert study.failures == {}

    write_sweep(space={key: {"grid": values[1:]}})
    study = sweep()
    firsts = check_cells(study.cells)
    with pytest.raises(UserError, match=re.escape(message)):  # nothing is left to run
        get_ready(study, firsts, track=False)


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
    request = Request("sweep", "tiny")
    study = begin_or_resume(request)
    study.home = study.home.with_name("one")
    study.write()
    return study


def test_only_what_was_started_is_resumed(here, capsys):
    study = begun(scales=laptop(set={"rounds": 4}))
    assert latest_unfinished(here / "results" / "tiny", "sweep") == study.home
    assert main(["tiny", "--resume", "rounds=5"]) == 2
    said = capsys.readouterr().err
    assert "was started with other arguments; pass the original ones " in said
    assert "(python -m fedray.sweep tiny)" in said
    assert main(["tiny", "--resume", "--num-samples", "1"]) == 2
    assert "was started with other arguments" in capsys.readouterr().err
    assert main(["tiny", "--out", str(study.home)]) == 2
    assert "already holds a study; continue it with --resume" in capsys.readouterr().err
    assert main(["other", "--resume", "--out", str(study.home)]) == 2
    assert "holds sweep tiny, not sweep other" in capsys.readouterr().err
    assert main(["tiny", "--resume", "--out", "nowhere"]) == 2
    assert "nowhere/plan.json does not exist; name the folder" in capsys.readouterr().err
    assert not Path("nowhere").exists()
    study.status = "finished"
    study.write()
    assert main(["tiny", "--resume", "--out", str(study.home)]) == 2
    assert "is finished; start without --resume" in capsys.readouterr().err


def test_what_another_process_has_finished_meanwhile_is_not_begun_again(here):
    stale = begun()
    study = Study.read(stale.home)
    reasons = {"a": "it diverged", "b": "out of memory"}  # which may have room another time
    study.ends |= {key: End("failed", reason) for key, reason in reasons.items()}
    study.write()
    assert reload(stale).failures == {"a": "it diverged"}
    study.status = "finished"
    study.write()
    with pytest.raises(UserError, match="was finished by another process meanwhile"):
        reload(stale)


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *product(["rounds.jsonl", "run.json"], [1, 2]),
        ("states/head.json", 1),
    ],
)
def test_a_stored_run_that_was_damaged_is_refused_before_a_study_starts(here, capsys, name, rounds):
    write_sweep()
    study = sweep()
    study.store = here / "results" / "store"
    run = study.ask()
    run.folder = study.folder(run.spec.key)
    all_reports = reports(config_of(run, study.plan), "best")
    while next(all_reports)["round"] < rounds:
        pass
    all_reports.close()
    file = run.folder / name
    file.write_bytes(file.read_bytes()[:-9] + b"\n")
    with FileLock(run.folder / TRIAL_LOCK):  # as while another study runs it
        is_read = name != "states/head.json"
        assert main(["tiny", "--no-track", "--plan"]) == (2 if is_read else 0)
    capsys.readouterr()
    assert main(["tiny", "--no-track"]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert f"remove {run.folder}" in error or name == "run.json"
    assert error.count("\n") == 1
    assert not (here / "results" / "tiny").exists()
    shutil.rmtree(run.folder)
    assert main(["tiny", "--no-track", "--plan"]) == 0


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"answers: something else\n"])
def test_a_copied_file_that_differs_is_noted_and_kept(here, capsys, content):
    study, request = begun(), Request("sweep", "tiny", resume=True)
    flow.copy_study_file(request, study)
    assert "note" not in capsys.readouterr().out
    (study.home / "sweep.yaml").write_bytes(content)
    flow.copy_study_file(request, study)
    assert "continues with its original copy" in capsys.readouterr().out
    assert (study.home / "sweep.yaml").read_bytes() == content


def test_a_plan_that_was_damaged_is_not_read(here):
    study = begun()
    file = study.home / "plan.json"
    file.write_text(file.read_text().replace("laptop", "labtop"))
    with pytest.raises(UserError, match=r"plan\.json cannot be read: .*does not fit its checksum"):
        Study.read(study.home)


def test_a_study_that_is_killed_while_it_concludes_can_be_resumed(here, monkeypatch):
    study = begun()
    while (run := study.ask()) is not None:
        study.tell(run, "failed", "it died")

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    from fedray.studies import pages

    monkeypatch.setattr(pages, "print_pages", killed)
    with pytest.raises(KeyboardInterrupt):
        flow.run_cells(study, 1, track=False)
    assert Study.read(study.home).status == "running"
    monkeypatch.setattr(pages, "print_pages", lambda study: None)
    assert flow.run_cells(study, 1, track=False) == 1
    assert Study.read(study.home).status == "failed"


@pytest.mark.parametrize("why", ["it died 4 time(s)", "OSError: No space left on device"])
def test_a_run_that_failed_is_tried_again_by_resume(here, capsys, monkeypatch, why):
    from fedray.studies import pages

    monkeypatch.setattr(pages, "print_pages", lambda study: None)
    study = begun()
    while (run := study.ask()) is not None:
        study.tell(run, "failed", why if run.number else f"{DIVERGED}: a NaN")
    flow.run_cells(study, 1, track=False)
    failed = len(study.runs) - 1
    said = capsys.readouterr().out
    assert f"{failed} run(s) failed; to try again, " in said
    assert "fedray.sweep tiny --resume" in said
    resumed = begin_or_resume(Request("sweep", "tiny", resume=True))
    assert resumed.home == study.home
    assert len(resumed.look().runs) == failed  # the one that diverged is not repeated
    later = Study(study.home.with_name("zz"), study.plan, study.store, status="finished")
    later.write()
    with pytest.raises(UserError, match="is unfinished; start without --resume"):
        latest_unfinished(study.home.parent, "sweep")


def test_tpe_tries_no_configuration_twice(here):
    space = {"lr": {"choice": [0.1, 0.2]}, "local_epochs": {"randint": [1, 3]}}
    write_sweep(search="tpe", space=space, configurations=50)
    study = sweep()
    assert study.plan.tuning.configurations == 6
    assert "6 configurations by tpe, the whole space, over lr" in headline(study)
    pretend(study, lambda spec: [(0.1, 0.1), (spec.config["lr"], 0.5)])
    assert study.is_complete
    assert len({repr(sorted(config.items())) for config in study.suggested}) == 6
    write_sweep(search="tpe", space={"lr": {"loguniform": [0.1, 0.2]}}, configurations=5)
    assert sweep().plan.tuning.configurations == 5
    write_sweep(search="random", space=space, configurations=50)
    assert "6 configurations by random, the whole space, over lr" in headline(sweep())


# --- plans and grids ------------------------------------------------------------------------------


def test_the_command_line_overrides_the_scale_and_seed_replaces_seeds(here):
    write_sweep(seeds=[0, 1], scales=laptop(set={"rounds": 4, "lr": 0.1}))
    study = sweep("rounds=3", "seed=5")
    assert study.plan.report.seeds == [5]
    for several in ("seed=5,0,7", "seed=[5, 0, 7]"):
        assert sweep(several).plan.report.seeds == [5, 0, 7]
    wanted = study.cells[0].run_spec({"algorithm.lambda": 2}, "tuning", 5)
    experiment = wanted.experiment
    assert (experiment.rounds, experiment.lr, experiment.seed) == (3, 0.1, 5)
    assert experiment.algorithm.tree() == {"name": "fedproto", "lambda": 2, "proto_agg": "weighted"}
    assert StudyPlan.model_validate_json(study.plan.model_dump_json()) == study.plan


def test_a_scale_has_metrics_of_its_own(here):
    scales = {
        **laptop(),
        "paper": {"experiment": "tiny.yaml", "metrics": ["local_accuracy", "accuracy_sketch"]},
    }
    write_sweep(metrics=["local_accuracy", "accuracy_amazon"], scales=scales)
    assert sweep().plan.metrics == ["local_accuracy", "accuracy_amazon"]
    paper = plan_words("sweep", "tiny", scale="paper")
    assert paper.metrics == ["local_accuracy", "accuracy_sketch"]


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
    cell = sweep().cells[0]
    assert cell.first == [
        {"algorithm.lambda": weight, "rounds": rounds, "lr": lr}
        for weight in (0, 1)
        for rounds, lr in ((1, 0.1), (1, 0.2), (2, 0.3))
    ]
    experiment = cell.run_spec(cell.first[-1], "tuning", 0).experiment
    assert (experiment.rounds, experiment.lr) == (2, 0.3)


def test_of_a_range_the_ends_are_checked(here):
    write_sweep(search="tpe", space={"lr": {"loguniform": [0.01, 0.1]}})
    assert check_cells(sweep().cells)[0].lr == 0.01
    for low, high in ((0.5, 2.0), (-1.0, 0.5)):
        write_sweep(search="tpe", space={"participation": {"uniform": [low, high]}})
        with pytest.raises(UserError, match="participation"):
            check_cells(sweep().cells)


def test_the_longest_runs_begin_first(here):
    write_sweep(space={"rounds": {"grid": [1, 5, 2]}})
    study, order = sweep(), []
    while (run := study.ask()) is not None:
        run.status = "running"
        order.append(run.spec.config["rounds"])
    assert order == [5, 2, 1]


def test_the_best_configuration_is_a_command_that_resolves(here):
    from fedray.runtime.resolve import resolve

    write_sweep(scales=laptop(set={"data": {"clients": 2}, "name": "a {label}"}))
    study = sweep("rounds=7", "seed=4")
    config = {"algorithm.lambda": 0.30000000000000004}
    words = shlex.split(best_command(study.plan, config))
    assert words[:3] == ["python", "-m", "fedray.run"]
    wanted = study.cells[0].run_spec(config, "tuning", 4)
    assert resolve(words[3], words[4:]).identity() == wanted.experiment.identity()


@pytest.mark.parametrize("given", [(), ("algorithm.lambda=3",)])
def test_a_sweep_over_methods_keeps_what_is_set_beside_them(here, given):
    from fedray.runtime.resolve import resolve

    keys = {} if given else {"set": {"algorithm.lambda": 3}}
    write_sweep(scales=laptop(**keys), space={"algorithm": {"grid": ["fedproto", "fedtgp"]}})
    study = sweep(*given)
    for config in study.plan.configurations("all"):
        spec = study.cells[0].run_spec(config, "tuning", 0)
        assert spec.experiment.tree()["algorithm"]["lambda"] == 3
        words = shlex.split(best_command(study.plan, config))
        assert resolve(words[3], words[4:]).identity() == spec.experiment.identity()


# --- search ---------------------------------------------------------------------------------------

SPACES = {
    "tpe": {"lr": {"loguniform": [0.01, 1]}, "algorithm.lambda": {"choice": [0, 1, 5]}},
    "random": {"lr": {"uniform": [0.01, 1]}, "local_epochs": {"randint": [1, 4]}},
}


def searched(study: Study, until: int = 99) -> list[dict]:
    """Return the configurations of a search whose runs come to a planted number, in order."""
    from pretended_runs import result_of

    found = []
    while len(found) < until and (run := study.ask()) is not None:
        config = run.spec.config
        value = 1 - ((config["lr"] - 0.3) ** 2) - 0.01 * list(config.values())[1]
        write_whole(Path(run.folder), result_of(run.spec, [(0.0, 0.0), (value, value)]))
        study.tell(run, "finished")
        study.write()
        found.append(config)
    return found


@pytest.mark.parametrize("search", SPACES)
def test_a_resumed_search_asks_what_it_would_have_asked(here, search):
    write_sweep(search=search, space=SPACES[search], configurations=12)
    expected = searched(sweep(home="whole"))
    assert len(expected) == 12
    assert len({str(config) for config in expected}) > 6
    cut = Study(here / "cut/it", sweep().plan, here / "cut/store")
    first = searched(cut, 7)
    asked = cut.ask()  # in flight when the driver dies
    cut.write()
    resumed = Study.read(cut.home)
    assert resumed.ask().spec.config == asked.spec.config
    assert first + searched(resumed) == expected


def test_a_plan_names_the_only_configuration_and_those_that_tpe_will_suggest(here):
    write_sweep(space={"lr": {"grid": [0.5]}})
    assert planned_cells(sweep()) == ["tiny: lr=0.5; seeds 0"]
    write_sweep(search="tpe", space=SPACES["tpe"], configurations=3)
    assert planned_cells(sweep()) == ["tiny: suggested by tpe; seeds 0"]


def test_tpe_takes_a_failed_run_as_failed(here):
    from fedray.studies.tpe import suggest

    write_sweep(search="tpe", space=SPACES["tpe"], configurations=30)
    plan = sweep().plan
    bad = [({"lr": 0.5, "algorithm.lambda": 5}, None)] * 10
    good = [({"lr": 0.1, "algorithm.lambda": 0}, 0.9)] * 10
    over = [True] * 20
    asked = suggest(plan, [*bad, *good], over)
    assert asked == suggest(plan, [*bad, *good], over)
    assert asked["algorithm.lambda"] in (0, 1, 5)


def test_asha_lets_runs_of_more_rounds_come_to_their_end(here):
    from fedray.studies.tune import _scheduler

    write_sweep(space={"rounds": {"grid": [1, 5, 2]}}, asha={"grace_rounds": 1})
    assert _scheduler(sweep())._max_t == 5


def test_a_run_that_asha_stopped_counts_as_it_was_then(here):
    from pretended_runs import result_of

    from fedray.studies.trials import sweep_outcome

    write_sweep(asha={"grace_rounds": 1})
    study = sweep()
    for status, curve in (("finished", [0.0, 0.5, 0.6]), ("stopped", [0.0, 0.7])):
        run = study.ask()
        whole = result_of(run.spec, [(value, value) for value in [*curve, 0.9, 0.9]])
        write_whole(Path(run.folder), whole.until(len(curve) - 1))
        study.tell(run, status)
    study.write()
    for each in (study, Study.read(study.home).look()):
        stopped = sweep_outcome(each).trials.loc[1]
        assert (stopped["objective"], stopped["status"]) == (0.7, "stopped")
