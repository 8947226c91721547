"""A sweep in MLflow: what is final is there once, and no password is anywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
from commands import plan_words, upload
from pretended_runs import end

from fedray.config import dump_yaml
from fedray.studies.cell import next_runs
from fedray.studies.pages import conclusion, write_pages
from fedray.studies.plan import RunSpec
from fedray.studies.study import Study
from fedray.studies.tracking import tracked_study, write_tracking
from fedray.studies.trials import SweepOutcome


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


def statuses(study: Study) -> dict[str, str | None]:
    """Return the status of each run of a study, as MLflow gets it."""
    return {run.name: run.status for run in tracked_study(study).runs.values()}


def test_a_run_has_the_objective_and_the_status_that_the_study_gave_it(study: Study) -> None:
    assert statuses(study) == {"lr=0.1 seed=0": None, "lr=0.2 seed=0": None}
    first, second = study.needed.values()
    end(study, first, curve)
    study.tell(second, "no memory")
    assert statuses(study) == {"lr=0.1 seed=0": "FINISHED", "lr=0.2 seed=0": "FAILED"}
    found = tracked_study(study)
    objectives = [run.metrics for run in found.runs.values()]
    assert objectives == [{"objective": pytest.approx(0.4)}, {}]
    assert (found.swept, found.is_min, found.parent.status) == (["lr"], False, "RUNNING")


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
        end(study, next_runs(study.plan, study.end_of)[0], curve)
        study.status = "finished" if study.is_complete else "running"
        study.write()
        write_pages(study)
        write_tracking(study, conclusion(study))
        assert upload([str(study.home), "--uri", uri]) == 0
        assert parent().info.status == ("KILLED", "FINISHED")[number]
        assert ("best_objective" in parent().data.metrics) is bool(number)
    assert [run.info.status for run in runs()] == ["FINISHED"] * 3
    numbers = {"trials_finished": 2, "trials_failed": 0, "best_objective": 0.5, "best_test": 0.7}
    for name, value in numbers.items():
        points = client.get_metric_history(parent().info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(0, value)]
    text = parent().data.tags["mlflow.note.content"]
    assert text.index(f"**{SweepOutcome(study).best_line()}**") < text.index("![")
    assert "sweep.png" in {file.path for file in client.list_artifacts(parent().info.run_id)}


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
        found = tracked_study(study).parent.params
        return {name: value for name, value in found.items() if name.startswith("space.")}

    assert params() == {"space.lr": '{"grid": [0.1, 0.2]}'}
    rows["other"] = {"algorithm": "local", "space": {"batch_size": {"grid": [4, 8]}}}
    assert params() == {
        "space.mine.lr": '{"grid": [0.1, 0.2]}',
        "space.other.batch_size": '{"grid": [4, 8]}',
        "space.other.lr": '{"grid": [0.1, 0.2]}',
    }


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
    assert "lacks a part (" in done.stderr
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
    _, *means, _, _ = of_sweep.splitlines()
    frame = pandas.read_csv(next(results.glob("fedtsp_lambda/*/trials.csv")))
    chosen = frame[frame["metric"].str.startswith("validation/")]
    objectives = {
        f"lr={lr}": mean / 100 for lr, mean in chosen.groupby("lr")["value"].mean().items()
    }
    read = {line.split()[0]: float(line.split()[1]) for line in means}
    assert read == pytest.approx(objectives)
    assert list(read.values()) == sorted(read.values(), reverse=True)
    curves = [ast.literal_eval(line) for line in of_sweep.splitlines()[-2:]]
    assert [[step for step, _ in curve] for curve in curves] == [[0, 1]] * 2
    cells, *runs = of_table.splitlines()
    assert ast.literal_eval(cells).keys() == {"mine/local_accuracy", "other/local_accuracy"}
    assert {line.split()[1] for line in runs[1:]} == {"mine", "other"}
