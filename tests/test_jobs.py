"""`ray job submit` against the head node that start-head.sh starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.common import free_port
from fedray.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
KEEP = ("FEDRAY_RESULTS", "FEDRAY_CACHE", "MLFLOW_DISABLE_TELEMETRY", "HF_HUB_OFFLINE")
STOPPED = """
answers: "does a sweep run as a job"
space:
  algorithm.lambda: {grid: [0, 1, 2, 3, 4, 5]}
scales:
  laptop:
    experiment: fedtsp_digits
    set:
      {rounds: 10, local_epochs: 1, data.clients: 4, workers: 1, algorithm.prompt_length: 0,
       text.encoder: orthogonal}
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A head node that asks for a token, and the environment that talks to it."""
    home = tmp_path_factory.mktemp("home")
    scratch = Path("/tmp") / f"fr{os.getpid()}"  # Ray's socket paths must stay short
    dashboard = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
        "HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "FEDRAY_RESULTS": str(home / "results"),
        "FEDRAY_CACHE": str(home / "cache"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
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
        while ray_job(env, home, "list").returncode:
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


def ray_job(env: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `ray job WORDS` in a folder; its output is all in stdout."""
    return subprocess.run(
        ["ray", "job", *words], env=env, cwd=folder, text=True, timeout=280,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def runtime(env: dict[str, str], **more: str) -> list[str]:
    """Options of a job that has this environment."""
    variables = {key: env[key] for key in KEEP} | more
    return ["--working-dir", ".", "--runtime-env-json", json.dumps({"env_vars": variables}), "--"]


def test_a_sweep_runs_as_a_job_from_the_repository(head: dict[str, str]) -> None:
    words = [
        "python", "-m", "fedray.sweep", "fedtsp_lambda", "rounds=1", "local_epochs=1",
        "data.clients=4", "algorithm.prompt_length=0", "text.encoder=orthogonal",
        "tuning.configurations=2",
    ]  # fmt: skip
    deadline = time.monotonic() + 120
    while (
        "No available agent"
        in (done := ray_job(head, ROOT, "submit", *runtime(head), *words)).stdout
    ):
        assert time.monotonic() < deadline
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"python -m fedray\.run \S+/best\.yaml", done.stdout), done.stdout[-2000:]
    (listed,) = (Path(head["FEDRAY_RESULTS"]) / "fedtsp_lambda").glob("*/runs.json")
    folders = [listed.parent / run for run in json.loads(listed.read_text())["runs"]]
    runs = [RunFolder(folder).read() for folder in folders]
    assert len({run.info.config["algorithm"]["lambda"] for run in runs}) == 2
    assert all(run.done == 1 for run in runs)
    assert (Path(head["FEDRAY_RESULTS"]) / "mlflow.db").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_stopped_job_goes_on_in_the_same_mlflow_run_by_its_hint(
    head: dict[str, str], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "stopped.yaml").write_text(STOPPED)
    where = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    more = {"MLFLOW_TRACKING_URI": uri, "PYTHONPATH": where, "RAY_JOB_STOP_WAIT_TIME_S": "60"}

    def ray(*words: str) -> str:
        return ray_job(head, tmp_path, *words).stdout

    def parent() -> tuple[str, str]:
        client = MlflowClient(uri)
        place = client.get_experiment_by_name("stopped")
        runs = client.search_runs([place.experiment_id]) if place else []
        [only] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        return only.info.run_id, only.info.status

    options = runtime(head, **more)
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
    hint = re.search(r"go on with: (python -m fedray.sweep stopped)", log)[1]
    log = ray("submit", *options, *shlex.split(hint))
    assert parent() == (run_id, "FINISHED"), log[-3000:]


def test_a_job_without_the_token_is_refused(head: dict[str, str], tmp_path: Path) -> None:
    stranger = {**head, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
    done = ray_job(stranger, tmp_path, "list")
    assert done.returncode != 0
    assert "401" in done.stdout or "auth" in done.stdout.lower()
