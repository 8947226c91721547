"""Small real sweeps through Ray and MLflow: undisturbed, killed, resumed, stopped early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest
from commands import upload
from rounds import serial
from sweeps import EXPERIMENT, laptop, write_sweep

from fedray.config import Experiment, dump_yaml
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.studies.study import Study
from fedray.studies.trials import SweepOutcome
from fedray.sweep import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _chosen_on_the_test(here):
    (here / "tiny.yaml").write_text(dump_yaml(EXPERIMENT))


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
    return ray


def alone(experiment: Experiment, out: Path) -> list[Round]:
    """Run one experiment by itself, in this process."""
    session = serial(experiment, out)
    return list(session.rounds())


def only_study(results: Path) -> Study:
    return Study.read(results / "tiny" / "laptop")


def runs_in(study: Study) -> list[dict]:
    """Return the lines of a sweep's frame for the metric that chooses."""
    frame = SweepOutcome(study).numbers.frame
    return frame[frame["metric"] == "local_accuracy"].to_dict("records")


def as_undisturbed(study: Study, here: Path) -> None:
    """Check that every run of a sweep is, bit for bit, the same run by itself."""
    found = SweepOutcome(study)
    for number, run in enumerate(runs_in(study)):
        if run["value"] != run["value"]:
            continue
        config = found.configs[run["row"]]
        wanted = study.plan.run(study.plan.places[0], config, "tuning", run["seed"])
        rounds = alone(wanted.experiment, here / f"alone{number}")
        stored = RunFolder(Path(run["folder"])).rounds()
        assert [r.metrics for r in stored] == [r.metrics for r in rounds]
        curve = [r.metrics["local_accuracy"] for r in rounds[1:]]
        assert (run["value"], run["round"]) == (100 * max(curve), 1 + curve.index(max(curve)))


def runs_of(results: Path, experiment: str) -> tuple[object, dict[str, object]]:
    """Return the parent run of the only invocation, and its other runs by their folders."""
    from mlflow import MlflowClient

    assert upload([str(results)]) == 0  # what the child that follows may still lack
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    number = client.get_experiment_by_name(experiment).experiment_id
    runs = client.search_runs([number])
    parents = {run.info.run_id: run.data.tags.get("mlflow.parentRunId") for run in runs}
    [parent] = [run for run in runs if parents[run.info.run_id] is None]
    children = [run for run in runs if run is not parent]
    assert {parents[run.info.run_id] for run in children} == {parent.info.run_id}
    return parent, {run.data.tags["fedray.folder"]: run for run in children}


def steps_of(results: Path, run: object) -> list[int]:
    """Return the rounds that MLflow has, in order; a round that ran twice may be there late."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    history = client.get_metric_history(run.info.run_id, "accuracy/local_accuracy")
    return sorted(point.step for point in history)


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_from_yaml_to_mlflow(here, capsys, database, ray_here):
    write_sweep(space={"lr": {"grid": [0.05, 0.1, 1e6]}}, seeds=[0, 1])
    assert main(["tiny", "algorithm.lambda=0.5"]) == 0
    printed = capsys.readouterr().out
    study = only_study(here / "results")
    found, runs = SweepOutcome(study), runs_in(study)
    assert study.status == "finished"
    assert [run["status"] for run in runs[:4]] == ["finished"] * 4
    as_undisturbed(study, here)
    assert "client 1, round 1, step client_update: FloatingPointError" in runs[4]["status"]
    assert Path(runs[4]["folder"], "error.txt").exists()

    # what is said
    assert "6 runs, 2 at a time" in printed
    assert "the cluster has 2 CPU" in printed
    assert "6/6 over" in printed
    assert "failed: it diverged: client 1, round 1" in printed
    objectives = {name: found.interval(name, found.chooser).mean for name in found.tried}
    assert found.best == max(objectives, key=objectives.get)
    assert f"python -m fedray.run {study.home}/best.yaml" in printed
    assert f"mlflow ui --backend-store-uri sqlite:///{here}/results/mlflow.db" in printed
    assert str(study.home) in printed
    assert (study.home / "sweep.png").stat().st_size > 5000
    assert len((study.home / "trials.csv").read_text().splitlines()) == 1 + 6

    # the same in MLflow
    parent, children = runs_of(here / "results", "tiny")
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_objective"] == pytest.approx(max(objectives.values()) / 100)
    assert len(children) == 6
    for row in runs:
        run = children[Path(row["folder"]).name]
        status = "finished" if row["status"] == "finished" else "failed"
        assert run.data.tags["fedray.method"] == "fedproto"
        assert run.data.tags["scale"] == "laptop"
        assert run.data.tags["config"] == f"lr={row['lr']:.4g}"
        assert run.info.status == status.upper()
        if status != "failed":
            assert steps_of(here / "results", run) == [0, 1, 2]

    # another sweep finds the runs that are there
    write_sweep("again", space={"lr": {"grid": [0.1, 0.05]}}, seeds=[1, 0])
    assert main(["again", "algorithm.lambda=0.5", "--no-track"]) == 0
    assert "4 runs; 4 are finished" in capsys.readouterr().out


@pytest.mark.ray
@pytest.mark.slow
def test_when_every_run_fails_the_sweep_fails(here, capsys, ray_here):
    write_sweep(metrics=["my_number"], space={"algorithm.lambda": {"grid": [1]}})
    assert main(["tiny", "rounds=1", "--no-track"]) == 1
    printed = capsys.readouterr()
    assert "no round has 'my_number'" in printed.out
    assert "every trial of tiny failed" in printed.err


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_asha_stops_by_rounds(here, capsys, database, ray_here):
    write_sweep(
        search="random",
        configurations=3,
        space={"lr": {"choice": [0.2, 1e-9, 1e-8]}},
        asha={"grace_rounds": 1, "reduction_factor": 2},
        scales=laptop(max_concurrent=1, set={"rounds": 3}),
    )
    assert main(["tiny", "--no-track"]) == 0
    assert "3 runs, 1 at a time" in capsys.readouterr().out
    study = only_study(here / "results")
    runs = runs_in(study)
    assert len(runs) == 3
    done = {run["status"]: RunFolder(Path(run["folder"])).read().done for run in runs}
    assert done["finished"] == 3
    assert done.get("stopped", 1) < 3

    # what was not tracked can be uploaded, as often as one likes
    from commands import upload

    for _ in range(2):
        assert upload([str(study.home)]) == 0
    parent, children = runs_of(here / "results", "tiny")
    assert parent.info.status == "FINISHED"
    for run in runs:
        last = RunFolder(Path(run["folder"])).read().done
        steps = steps_of(here / "results", children[Path(run["folder"]).name])
        assert steps == list(range(last + 1))


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_process_dies_goes_on_after_its_checkpoint(here, database, ray_here):
    write_sweep(scales=laptop(set={"rounds": 6, "local_epochs": 8}), seeds=[0])
    driver = psutil.Process()
    killed = []

    def kill_once() -> None:
        """Kill the first run's actor once it has finished a round."""
        while not killed:
            if list((here / "results").glob("store/*/run.json")):
                for process in driver.children(recursive=True):
                    if process.name().startswith("ray::Run.train"):
                        killed.append(process.pid)
                        process.kill()
                        return
            time.sleep(0.02)

    thread = Thread(target=kill_once, daemon=True)
    thread.start()
    assert main(["tiny", "tuning.configurations=1"]) == 0
    thread.join(5)
    assert killed
    study = only_study(here / "results")
    [run] = runs_in(study)
    assert run["status"] == "finished"
    as_undisturbed(study, here)
    _, children = runs_of(here / "results", "tiny")
    assert steps_of(here / "results", children[Path(run["folder"]).name]) == list(range(7))


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_killed_and_resumed_is_as_undisturbed(here):
    write_sweep(scales=laptop(set={"rounds": 5}), space={"algorithm.lambda": {"grid": [0, 1, 5]}})
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
        runs = [RunFolder(path.parent) for path in results.glob("store/*/run.json")]
        if any(run.is_finished for run in runs):
            break
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert second.returncode == 0, second.stdout + second.stderr
    study = only_study(results)
    assert study.status == "finished"
    assert len(SweepOutcome(study).tried) == 3
    as_undisturbed(study, here)
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
from fedray.studies.trainable import pool_of

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
