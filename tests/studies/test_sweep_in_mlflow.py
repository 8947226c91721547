"""A sweep in MLflow: what is final is there once, and no password is anywhere."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sweeps
from commands import plan_words, upload
from pretended_runs import end, pretend, result_of

from fedray.config import dump_yaml
from fedray.storage.claim import FolderClaim
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import RunSpec
from fedray.studies.pages import conclusion, write_pages
from fedray.studies.study import Study
from fedray.studies.sweep_pages import best_line
from fedray.studies.tracking import study_run, study_sources
from fedray.studies.trials import sweep_outcome
from tests.tracking.runs import Following, wait_until


def write_sweep(folder: Path) -> None:
    (folder / "tune").mkdir()
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.1, 0.2]}},
        "scales": {"laptop": {"experiment": "fedtsp_digits"}},
    }
    (folder / "tune" / "tiny.yaml").write_text(dump_yaml(sweep))


def curve(wanted: RunSpec) -> list[tuple[float, float]]:
    return [(0.1, 0.1), (0.3 + wanted.config["lr"], 0.5 + wanted.config["lr"])]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """An invocation of the sweep tiny, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)
    begun = Study(tmp_path / "home", plan_words("sweep", "tiny"), tmp_path / "store")
    begun.write()
    return begun


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    """A database of MLflow."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path)}"


def test_an_interrupted_sweep_has_no_final_numbers_and_a_resumed_one_has_them_once(
    study: Study, uri: str
) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)

    def runs() -> list:
        return client.search_runs([client.get_experiment_by_name("tiny").experiment_id])

    def parent() -> object:
        [found] = [run for run in runs() if "mlflow.parentRunId" not in run.data.tags]
        return found

    for number in range(2):  # interrupted after the first run, then resumed
        study = Study.read(study.home)
        with Following(study.home, uri) as following:
            end(study, study.ask(), curve)
            study.status = "finished" if study.is_complete else "running"
            study.write()
            assert following.end()
        assert parent().info.status == ("KILLED", "FINISHED")[number]
        assert ("best_objective" in parent().data.metrics) is bool(number)
    assert upload([str(study.home), "--uri", uri]) == 0

    assert [run.info.status for run in runs()] == ["FINISHED"] * 5  # parent, trials, their runs
    numbers = {"trials_finished": 2, "trials_failed": 0, "best_objective": 0.5, "best_test": 0.7}
    for name, value in numbers.items():
        points = client.get_metric_history(parent().info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(0, value)]


def test_a_sweep_that_another_process_executes_keeps_its_state(study: Study) -> None:
    end(study, study.ask(), curve)
    going = study.ask()
    half = result_of(going.spec, curve(going.spec))
    half.info.config["rounds"] = 99
    second = RunFolder(going.folder)
    second.write(half)

    def statuses(*, is_going: bool) -> list[str]:
        found = study_sources(Study.read(study.home).look(), conclusion, is_going=is_going)
        return [source.read().status for source in found]

    claim = FolderClaim(second)
    claim.acquire()
    assert statuses(is_going=True) == ["RUNNING", "FINISHED", "RUNNING", "FINISHED", "RUNNING"]
    claim.release()
    ended = ["KILLED", "FINISHED", "KILLED", "FINISHED", "KILLED"]
    assert statuses(is_going=False) == ended
    going.status = "running"  # as the process says that executes the sweep, perhaps elsewhere
    study.write()
    assert statuses(is_going=True) == ["RUNNING", "FINISHED", "RUNNING", "FINISHED", "RUNNING"]
    assert statuses(is_going=False) == ended


def test_a_run_without_files_is_running_and_one_that_failed_is_named(study: Study) -> None:
    for _ in range(2):
        run = study.ask()
        run.status, run.ray_id = "running", f"ray_{run.number}"
    study.write()

    def runs(*, is_going: bool) -> list[tuple[str, str | None]]:
        found = study_sources(Study.read(study.home).look(), conclusion, is_going=is_going)
        return [
            (run.status, run.tags["ray_trial_id"])
            for run in (source.read() for source in found)
            if "fedray.seed" in run.tags
        ]

    assert runs(is_going=True) == [("RUNNING", "ray_0"), ("RUNNING", "ray_1")]
    study.tell(next(iter(study.runs.values())), "failed", "no memory")
    study.write()
    assert runs(is_going=True) == [("FAILED", "ray_0"), ("RUNNING", "ray_1")]
    assert runs(is_going=False) == [("FAILED", "ray_0"), ("KILLED", "ray_1")]


def test_a_finished_run_is_finished_whoever_still_holds_its_folder(study: Study) -> None:
    run = study.ask()
    end(study, run, curve)
    study.write()
    claim = FolderClaim(RunFolder(run.folder))
    claim.acquire()
    found = study_sources(Study.read(study.home).look(), conclusion, is_going=True)
    claim.release()
    assert [(source.state, source.read().status) for source in found][-1] == ("FINISHED",) * 2


def test_a_damaged_run_folder_stops_no_other_run_of_a_sweep(study: Study, uri: str) -> None:
    from mlflow import MlflowClient

    with Following(study.home, uri) as following:
        for damage in (True, False):
            run = study.ask()
            end(study, run, curve)
            if damage:
                bad = RunFolder(run.folder).rounds_file
                bad.write_text(bad.read_text().replace('"metrics"', '"metrix"', 1))
            study.write()
        study.status = "finished"
        study.write()
        assert not following.end()
    said = [line for line in following.said if not line.startswith("view them")]
    assert len(said) == 2
    assert all(str(bad) in line for line in said)
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    of_other = [run for run in runs if run.data.tags.get("config") == "lr=0.2"]
    assert [run.info.status for run in of_other] == ["FINISHED"] * 2  # the trial and its run


def test_a_run_that_ended_unknown_to_mlflow_is_ended_there_by_the_resumed_sweep(
    study: Study, uri: str
) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)

    def statuses() -> list[str]:
        place = client.get_experiment_by_name("tiny")
        runs = client.search_runs([place.experiment_id]) if place else []
        return [run.info.status for run in runs]

    run = study.ask()
    run.status = "running"
    study.write()
    with Following(study.home, uri) as following:  # the first process is killed
        wait_until(lambda: len(statuses()) == 3)
        assert statuses() == ["RUNNING"] * 3
        following.end()
    assert statuses() == ["KILLED"] * 3
    end(study, run, curve)
    study = Study.read(study.home)
    with Following(study.home, uri) as following:
        end(study, study.ask(), curve)
        study.status = "finished"
        study.write()
        assert following.end()
    assert statuses() == ["FINISHED"] * 5


def test_the_parent_of_a_table_has_the_space_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune" / "tables").mkdir(parents=True)
    lr = {"lr": {"grid": [0.1, 0.2]}}
    rows = {"mine": "fedproto", "other": {"algorithm": "local"}}
    table = {"experiment": "fedtsp_digits", "rows": rows, "space": lr, "baselines": []}

    def params() -> dict[str, str]:
        (tmp_path / "tune" / "tables" / "tiny.yaml").write_text(dump_yaml(table))
        study = Study(tmp_path / "home", plan_words("table", "tiny"), tmp_path / "store")
        found = study_run(study, "RUNNING").params
        return {name: value for name, value in found.items() if name.startswith("space.")}

    assert params() == {"space.lr": '{"grid": [0.1, 0.2]}'}
    rows["other"] = {"algorithm": "local", "space": {"batch_size": {"grid": [4, 8]}}}
    assert params() == {
        "space.mine.lr": '{"grid": [0.1, 0.2]}',
        "space.other.batch_size": '{"grid": [4, 8]}',
        "space.other.lr": '{"grid": [0.1, 0.2]}',
    }


def test_a_trial_has_its_objective_over_seeds_and_the_runs_of_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)
    plan = plan_words("sweep", "tiny", ["report.seeds=[0,1]"])
    study = Study(tmp_path / "home", plan, tmp_path / "store")
    study.write()

    def by_seed(wanted: RunSpec) -> list[tuple[float, float]]:
        if (wanted.config["lr"], wanted.seed) == (0.2, 1):
            return None  # it diverges
        return [(0.1, 0.1), (0.3 + wanted.seed / 10, 0.5 + wanted.seed / 10)]

    pretend(study, by_seed)
    study.write()
    found = study_sources(Study.read(study.home).look(), conclusion, is_going=False)
    parent, *others = [source.read() for source in found]
    trials = {run.tags["config"]: run for run in others if run.parent == parent.key}
    good, bad = trials["lr=0.1"], trials["lr=0.2"]
    assert (good.name, good.status, dict(good.params)) == (
        "lr=0.1 (trial 0)", "FINISHED", {"lr": "0.1"}
    )  # fmt: skip
    assert good.metrics["objective"] == pytest.approx(0.35)
    assert good.metrics["objective_std"] == pytest.approx(0.1 / 2**0.5)
    assert good.metrics["best/local_accuracy"] == pytest.approx(0.55)
    assert (bad.status, bad.metrics) == ("FAILED", {})
    assert [run.tags["fedray.seed"] for run in others if run.parent == good.key] == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_a_real_sweep_interrupted_and_resumed_is_what_the_page_says(
    seeds: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    empty_database: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    Path("tiny.yaml").write_text(dump_yaml(TINY))
    space = {"lr": {"grid": [0.0001, 0.1]}, "batch_size": {"grid": [8]}}
    sweeps.write_sweep("fedtsp_lambda", space=space, seeds=seeds)
    home, store = tmp_path / "fedtsp_lambda", tmp_path / "store"
    Study(home, plan_words("sweep", "fedtsp_lambda"), store).write()
    client, statuses = MlflowClient(uri), []

    def runs(of: MlflowClient = client) -> list:
        place = of.get_experiment_by_name("fedtsp_lambda")
        return of.search_runs([place.experiment_id]) if place else []

    for number in range(2):  # interrupted after a run, then resumed
        study = Study.read(home)
        with Following(home, uri) as following:
            while (run := study.ask()) is not None:
                run.status = "running"
                study.write()
                if number == 0 and run.number == len(seeds):
                    break
                sweeps.carry_out(study, run)
            study.status = "finished" if study.is_complete else "running"
            write_pages(study)
            study.write()
            assert following.end()
        statuses.append({run.info.run_name: run.info.status for run in runs()})
    killed = [name for name, status in statuses[0].items() if status == "KILLED"]
    assert len(killed) == 3  # the parent, a trial and its run
    assert statuses[1] == dict.fromkeys(statuses[1], "FINISHED")
    assert len(statuses[1]) == 1 + 2 + 2 * len(seeds)
    capsys.readouterr()

    [parent] = [run for run in runs() if "mlflow.parentRunId" not in run.data.tags]
    key, experiment = parent.data.tags["fedray.key"], parent.info.experiment_id
    view = json.loads(client.get_experiment(experiment).tags[f"mlflow.sharedViewState.{key}"])
    assert view["name"] == "fedtsp_lambda-fedtsp_lambda"
    state = json.loads(view["state"])
    order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
    trials = client.search_runs([experiment], state["searchFilter"], order_by=[order])
    result = sweep_outcome(study)
    best, worst = (f"lr={result.configs[n]['lr']} batch_size=8" for n in result.ranked)
    assert [run.data.tags["config"] for run in trials] == [best, worst]
    spread = ["objective_std"] if len(seeds) > 1 else []
    columns = [f"params.`{name}`" for name in trials[0].data.params]
    names = ["objective", "best/local_accuracy", *spread]
    assert columns == ["params.`lr`"]  # the batch size does not vary
    assert state["selectedColumns"] == columns + [f"metrics.`{name}`" for name in names]
    for run, number in zip(trials, result.ranked, strict=True):
        trial = result.trials.loc[number]
        numbers = trial[["objective", "local_accuracy", "std"]].tolist()[: len(names)]
        assert run.data.metrics == dict(zip(names, numbers, strict=True))
        text = run.data.tags["mlflow.note.content"]
        assert f"validation/local_accuracy **{trial['objective']:.4f}**" in text
        children = client.search_runs(
            [experiment], f"tags.mlflow.parentRunId = '{run.info.run_id}'"
        )
        assert {run.data.tags["fedray.seed"] for run in children} == set(map(str, seeds))
    text = parent.data.tags["mlflow.note.content"]
    assert text.index(f"**{best_line(result)}**") < text.index("![")
    assert f"(#/experiments/{experiment}/runs?viewStateShareKey={key}&" in text
    assert "sweep.png" in {file.path for file in client.list_artifacts(parent.info.run_id)}

    (program, _) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    exec(compile(program, str(PAGE), "exec"), {})
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["tags.config", "metrics.objective"]
    assert [row.split()[1:3] for row in rows[:2]] == [label.split() for label in (best, worst)]
    curves = [ast.literal_eval(line) for line in rows[2:]]
    assert [[step for step, _ in curve] for curve in curves] == [[0, 1]] * len(seeds)

    again = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'again.db')}"
    assert upload([str(home), "--uri", again]) == 0
    live, uploaded = (
        {
            run.info.run_name: (
                run.info.status, run.data.params, run.data.metrics, run.data.tags["fedray.key"],
                # A run's start is only known to its folder; a trial's is that of the sweep.
                *([] if "fedray.seed" in run.data.tags else [run.info.start_time]),
                *([run.info.end_time] if run.info.run_name.endswith(")") else []),
            )
            for run in runs(MlflowClient(where))
        }
        for where in (uri, again)
    )  # fmt: skip
    assert uploaded == live


SECRET = "s3cr3t-w0rd"
TINY = {
    "name": "tiny",
    "algorithm": "fedproto",
    "rounds": 1,
    "local_epochs": 1,
    "data": {"clients": 2, "samples": 200, "validation_fraction": 0.2},
    "model": {"feature_dim": 16},
}


@pytest.fixture
def ray_logs() -> Iterator[Path]:
    """A temporary folder with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.ray
@pytest.mark.timeout(700)
@pytest.mark.long
def test_a_password_in_the_address_is_in_no_file_of_a_sweep_and_of_ray(
    tmp_path: Path, ray_logs: Path
) -> None:
    (tmp_path / "tune").mkdir()
    (tmp_path / "tiny.yaml").write_text(dump_yaml(TINY))
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.05]}},
        "scales": {"laptop": {"experiment": "tiny.yaml"}},
    }
    (tmp_path / "tune" / "tiny.yaml").write_text(dump_yaml(sweep))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "FEDRAY_RESULTS": str(tmp_path / "results"),
        "RAY_TMPDIR": str(ray_logs),
        "MLFLOW_TRACKING_URI": f"http://ada:{SECRET}@127.0.0.1:9",  # nobody listens there
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedray.sweep", "tiny"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "http://ada:***@127.0.0.1:9" in done.stderr
    assert "does not have all of 3 run(s)" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    logs = [path for path in ray_logs.rglob("*") if path.is_file()]
    assert any("worker" in path.name for path in logs)
    for path in files + logs:
        assert SECRET.encode() not in path.read_bytes(), path


PAGE = Path(__file__).parents[2] / "docs" / "mlflow.md"


@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.long
def test_the_programs_of_the_page_read_a_real_sweep_and_a_real_table(
    tmp_path: Path, ray_logs: Path
) -> None:
    (tmp_path / "tune" / "tables").mkdir(parents=True)
    (tmp_path / "tiny.yaml").write_text(dump_yaml(TINY))
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.0001, 0.1]}},
        "report": {"seeds": [0, 1]},
        "scales": {"laptop": {"experiment": "tiny.yaml"}},
    }
    (tmp_path / "tune" / "fedtsp_lambda.yaml").write_text(dump_yaml(sweep))
    table = {"experiment": "tiny.yaml", "rows": {"mine": "fedproto", "other": "local"}}
    table |= {"baselines": [], "report": {"seeds": [0, 1]}}
    (tmp_path / "tune" / "tables" / "fedtsp_table1.yaml").write_text(dump_yaml(table))
    results = tmp_path / "results"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "FEDRAY_RESULTS": str(results),
        "RAY_TMPDIR": str(ray_logs),
    }

    def run(*words: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment | more,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "fedray.sweep", "fedtsp_lambda")
    run("-m", "fedray.table", "fedtsp_table1")
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    uri = f"sqlite:///{results}/mlflow.db"
    of_sweep, of_table = (run("-c", program, MLFLOW_TRACKING_URI=uri) for program in programs)
    first, *trials, _, _ = of_sweep.splitlines()
    assert first.split() == ["tags.config", "metrics.objective"]
    with next(results.glob("fedtsp_lambda/*/trials.csv")).open() as file:
        objectives = {f"lr={row['lr']}": float(row["objective"]) for row in csv.DictReader(file)}
    read = {line.split()[1]: float(line.split()[2]) for line in trials}
    assert read == pytest.approx(objectives)
    assert list(read.values()) == sorted(read.values(), reverse=True)
    curves = [ast.literal_eval(line) for line in of_sweep.splitlines()[-2:]]
    assert [[step for step, _ in curve] for curve in curves] == [[0, 1]] * 2
    cells, *runs = of_table.splitlines()
    assert ast.literal_eval(cells).keys() == {"mine/local_accuracy", "other/local_accuracy"}
    assert {line.split()[1] for line in runs[1:]} == {"mine", "other"}
