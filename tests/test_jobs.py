"""`ray job submit`, and `RAY_ADDRESS`, against the head node that start-head.sh starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.common import free_port
from fedray.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
TINY = """
answers: "does a sweep run as a job"

space:
  algorithm.lambda: {grid: [0, 1]}
scales:
  laptop:
    experiment: fedtsp_digits
    set:
      {rounds: 1, local_epochs: 1, data.clients: 4, workers: 1, algorithm.prompt_length: 0,
       text.encoder: orthogonal}
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A head node that asks for a token, and the environment that talks to it."""
    home = tmp_path_factory.mktemp("home")
    scratch = Path("/tmp") / f"fr{os.getpid()}"  # Ray's socket paths must stay short
    dashboard = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {
        "HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "FEDRAY_RESULTS": str(home / "results"),
        "FEDRAY_CACHE": str(home / "cache"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    env |= {
        "FEDRAY_RAY_PORT": str(free_port()),
        "FEDRAY_DASHBOARD_PORT": str(dashboard),
        "FEDRAY_RAY_TMP": str(scratch),
        "RAY_TMPDIR": str(home),  # where a Ray that is started instead of joined would lie
    }
    before = set(psutil.pids())
    start = ["bash", str(ROOT / "clusters" / "laptop" / "start-head.sh"), "--num-cpus=2"]
    process = subprocess.Popen(start, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    env["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + 120
        while not answers(dashboard) or not lists_jobs(env):
            assert process.poll() is None, "the head node did not start"
            assert time.monotonic() < deadline, "the head node does not answer"
            time.sleep(1)
        yield env
    finally:
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(True))]
        for pid in family:
            if pid not in before and psutil.pid_exists(pid):
                psutil.Process(pid).kill()
        process.wait(timeout=60)
        shutil.rmtree(scratch, ignore_errors=True)


def answers(port: int) -> bool:
    """Whether a server is there, whatever it says; to ask by `ray` takes seconds of both cores."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def lists_jobs(env: dict[str, str]) -> bool:
    return subprocess.run(["ray", "job", "list"], env=env, capture_output=True).returncode == 0


def submit(env: dict[str, str], folder: Path, *command: str, **job_env: str) -> str:
    """Submit a job from `folder` and return its log."""
    keep = ("FEDRAY_RESULTS", "FEDRAY_CACHE", "MLFLOW_DISABLE_TELEMETRY", "HF_HUB_OFFLINE")
    runtime = {"env_vars": {key: env[key] for key in keep} | job_env}
    deadline = time.monotonic() + 120
    while True:
        done = subprocess.run(
            ["ray", "job", "submit", "--working-dir", str(folder),
             "--runtime-env-json", json.dumps(runtime), "--", *command],
            env=env, cwd=folder, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        log = done.stdout + done.stderr
        starting = "No available agent" in log and time.monotonic() < deadline
        if not starting:
            break
        time.sleep(2)
    assert done.returncode == 0, log[-3000:]
    return log


def result_files(env: dict[str, str], sweep: str) -> set[Path]:
    (listed,) = (Path(env["FEDRAY_RESULTS"]) / sweep).glob("*/runs.json")
    return {listed.parent / run / "run.json" for run in json.loads(listed.read_text())["runs"]}


def test_a_sweep_runs_as_a_job_from_the_repository(head: dict[str, str]) -> None:
    log = submit(
        head, ROOT, "python", "-m", "fedray.sweep", "fedtsp_lambda",
        "rounds=1", "local_epochs=1", "data.clients=4", "algorithm.prompt_length=0",
        "text.encoder=orthogonal", "tuning.configurations=2",
    )  # fmt: skip
    assert re.search(r"python -m fedray\.run \S+/best\.yaml", log), log[-2000:]
    runs = [RunFolder(path.parent).read() for path in result_files(head, "fedtsp_lambda")]
    assert len({run.info.config["algorithm"]["lambda"] for run in runs}) == 2
    assert all(run.done == 1 for run in runs)
    assert (Path(head["FEDRAY_RESULTS"]) / "mlflow.db").exists()


@pytest.mark.long
def test_a_sweep_runs_as_a_job_from_an_installed_wheel(
    head: dict[str, str], tmp_path: Path
) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)],
        check=True, timeout=200,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("fedray-*.whl")
    site = tmp_path / "site"
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, timeout=200
    )
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"fedray"}
    assert (site / "fedray" / "sweeps" / "fedtsp_lambda.yaml").exists()
    folder = tmp_path / "empty"
    (folder / "tune").mkdir(parents=True)
    (folder / "tune" / "tiny.yaml").write_text(TINY)
    where = submit(
        head, folder, "python", "-c", "import fedray; print(fedray.__file__)",
        PYTHONPATH=str(site),
    )  # fmt: skip
    assert str(site) in where
    log = submit(head, folder, "python", "-m", "fedray.sweep", "tiny", PYTHONPATH=str(site))
    assert "/best.yaml" in log
    assert len(result_files(head, "tiny")) == 2


@pytest.mark.long
def test_a_method_in_the_jobs_folder_is_run_with_two_workers(
    head: dict[str, str], tmp_path: Path
) -> None:
    new = [sys.executable, "-m", "fedray", "new", "method", "mine"]
    where = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": where}
    subprocess.run(new, env=env, cwd=tmp_path, check=True, timeout=100)
    run = [
        "python", "-m", "fedray.run", "fedavg_digits", "--plugin", "mine.py", "algorithm=mine",
        "rounds=1", "local_epochs=1", "data.clients=4", "workers=2", "--no-track",
    ]  # fmt: skip
    out = tmp_path / "out"
    log = submit(head, tmp_path, *run, "--out", str(out), PYTHONPATH=where)
    assert "mine on digits, 4 clients, 1 rounds, seed 0, in 2 Ray worker(s), with mine.py" in log
    result = json.loads((out / "run.json").read_text())
    assert result["config"]["plugins"].keys() == {"mine"}
    assert (out / "plugins" / "mine.py").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stopped_job_goes_on_in_the_same_mlflow_run_by_its_hint(
    head: dict[str, str], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "stopped.yaml").write_text(
        TINY.replace("rounds: 1,", "rounds: 10,").replace("[0, 1]", "[0, 1, 2, 3, 4, 5]")
    )
    where = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    keep = ("FEDRAY_RESULTS", "FEDRAY_CACHE", "MLFLOW_DISABLE_TELEMETRY", "HF_HUB_OFFLINE")
    variables = {key: head[key] for key in keep} | {
        "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": where, "RAY_JOB_STOP_WAIT_TIME_S": "60"
    }  # fmt: skip

    def ray(*words: str) -> str:
        command = ["ray", "job", *words]
        done = subprocess.run(
            command, env=head, cwd=tmp_path, capture_output=True, text=True, timeout=280
        )
        return done.stdout + done.stderr

    def parent() -> tuple[str, str]:
        client = MlflowClient(uri)
        place = client.get_experiment_by_name("stopped")
        runs = client.search_runs([place.experiment_id]) if place else []
        [only] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        return only.info.run_id, only.info.status

    env = json.dumps({"env_vars": variables})
    options = ["--working-dir", ".", "--runtime-env-json", env, "--"]
    said = ray("submit", "--no-wait", *options, "python", "-m", "fedray.sweep", "stopped")
    job = re.search(r"raysubmit_\w+", said)[0]
    deadline = time.monotonic() + 300
    while "1/6 over" not in (log := ray("logs", job)):
        assert time.monotonic() < deadline, log[-3000:]
        time.sleep(2)
    ray("stop", job)
    run_id, status = parent()
    log = ray("logs", job)
    assert status == "KILLED", log[-3000:]
    assert "the run goes on" not in log
    hint = re.search(r"go on with: (python -m fedray.sweep stopped)", log)[1]
    log = ray("submit", *options, *shlex.split(hint))
    assert parent() == (run_id, "FINISHED"), log[-3000:]


def test_a_job_without_the_token_is_refused(head: dict[str, str], tmp_path: Path) -> None:
    stranger = {**head, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        ["ray", "job", "list"], env=stranger, capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "401" in done.stdout + done.stderr or "auth" in (done.stdout + done.stderr).lower()


@pytest.mark.long
def test_a_run_joins_the_head_by_its_loopback_address(head: dict[str, str], tmp_path: Path) -> None:
    run = [
        sys.executable, "-m", "fedray.run", "fedavg_digits", "rounds=1", "local_epochs=1",
        "data.clients=4", "data.samples=240", "workers=1", "--no-track",
    ]  # fmt: skip
    for name in ("127.0.0.1", "localhost"):
        done = subprocess.run(
            [*run, "--out", str(tmp_path / name)],
            env=head | {"RAY_ADDRESS": f"{name}:{head['FEDRAY_RAY_PORT']}"},
            cwd=ROOT, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / name / "run.json").exists()
    assert not list(Path(head["HOME"]).glob("fedray-*")), "a Ray of its own was started"
