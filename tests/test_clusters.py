"""clusters/ and mlflow/: scripts, sweeps that pages name, and what travels with a job."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.common import free_port

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = ROOT / "clusters"
SBATCH, SERVER = CLUSTERS / "slurm" / "sweep.sbatch", ROOT / "mlflow" / "server.sh"
SCRIPTS = [CLUSTERS / "laptop" / "start-head.sh", SBATCH, SERVER]
YAML = sorted([*CLUSTERS.rglob("*.yaml"), ROOT / "mlflow" / "compose.yaml"])


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_executable_bash(path):
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_manifest_is_yaml(path):
    assert all(isinstance(each, dict) for each in yaml.safe_load_all(path.read_text()))


def test_sweeps_in_the_texts_exist_and_their_arguments_parse():
    from fedray.cli.study import sweep

    texts = [path.read_text() for path in (*YAML, SBATCH, *CLUSTERS.rglob("README.md"))]
    lines = re.findall(r"python -m fedray\.sweep ([a-z][^`\n]*)", "\n".join(texts))
    assert len(lines) > 3
    for line in lines:
        params = sweep.make_context("sweep", shlex.split(line, comments=True)).params
        assert (ROOT / "tune" / f"{params['name']}.yaml").is_file(), params["name"]


# --- Slurm ---------------------------------------------------------------------------------------

# Stand-ins. `ray` makes a token, and `start` stays until it is ended. `python` reads the command,
# waits for nodes, and sweeps.
TOOLS = {
    "ray": r"""
case "$1" in
  get-auth-token) mkdir -p ~/.ray; echo secret > ~/.ray/auth_token ;;
  start)
    for a in "$@"; do [[ $a == --port=* ]] && port=${a#*=}; done
    exec "$PYTHON" -c '
import os, signal, socket, sys
def end(*_):
    open(os.environ["LOG"], "a").write("ended\n"); os._exit(0)
signal.signal(signal.SIGTERM, end)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
signal.pause()' "$port" ;;
esac
""",
    "scontrol": r"""
case "$*" in
  "show hostnames"*) echo localhost ;;
  *"show node"*) echo "NodeName=x NodeAddr=127.0.0.1 Port=1" ;;
esac
""",
    "srun": 'while [[ "$1" == -* ]]; do shift; done; ${KILLED:-exec} "$@"',
    "python": r"""
case "$*" in
  *--plan) exit "${PLAN_STATUS:-0}" ;;
  "- "*) exec sleep "${JOIN_SECONDS:-0}" ;;
  *) exec bash -c "sleep ${SWEEP_SECONDS:-0}; exit ${SWEEP_STATUS:-0}" ;;
esac
""",
}
SWEEP = "python -m fedray.sweep fedtsp_lambda --scale paper"


def start_job(folder: Path, words: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start sweep.sbatch among stand-ins for Ray, Slurm and Python, which log."""
    tools, submit = folder / "bin", folder / "submit" / ".venv" / "bin"
    for made in (tools, submit, folder / "home"):
        made.mkdir(parents=True)
    (submit / "activate").touch()
    for name, text in TOOLS.items():
        log = f'echo "{name} $* mode=${{RAY_AUTH_MODE:-}}" >> "$LOG"'
        (tools / name).write_text(f"#!/usr/bin/env bash\n{log}\n{text}\n")
        (tools / name).chmod(0o755)
    env = {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "LOG": str(folder / "log"),
        "PYTHON": sys.executable,
        "KILLED": "",
        "RAY_TMPDIR": str(folder),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_SUBMIT_DIR": str(folder / "submit"),
        "MLFLOW_TRACKING_URI": "http://tracking.example.org:5000",
        **env,
    }
    return subprocess.Popen(["bash", str(SBATCH), *words.split()], env=env, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "sent", "status", "queued"),
    [
        ({}, None, 0, False),
        ({"MLFLOW_TRACKING_URI": ""}, None, 2, False),
        ({"PLAN_STATUS": "2"}, None, 2, False),
        ({"SWEEP_STATUS": "3"}, None, 3, False),
        ({"KILLED": "timeout -s KILL 0.1"}, None, 75, True),
        ({"KILLED": "timeout -s KILL 2", "JOIN_SECONDS": "600"}, None, 75, True),
        ({"KILLED": "timeout -s KILL 4", "SWEEP_SECONDS": "9"}, None, 75, True),
        ({"SWEEP_SECONDS": "60"}, signal.SIGTERM, 143, False),
        ({"SWEEP_SECONDS": "60"}, signal.SIGUSR1, 75, True),
        ({"SWEEP_SECONDS": "60", "SLURM_RESTART_COUNT": "20"}, signal.SIGUSR1, 1, False),
    ],
)
def test_sbatch_sweeps_ends_what_it_started_and_is_queued_again(
    tmp_path, env, sent, status, queued
):
    running = start_job(tmp_path, "fedtsp_lambda --scale paper", env)
    log = tmp_path / "log"
    if sent is not None:
        wait_until(lambda: log.exists() and f"{SWEEP} mode" in log.read_text())
        running.send_signal(sent)
    assert running.wait(120) == status
    lines = log.read_text().splitlines() if log.exists() else []
    assert any("requeue" in line for line in lines) == queued
    started = [line for line in lines if line.startswith("ray start")]
    assert all("--head --" in line and "mode=token" in line for line in started)
    assert "KILLED" in env or bool(started) == ("ended" in lines) == (status != 2)


def wait_until(true: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


# --- the tracking server -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tracking_server_answers_under_its_names_only(tmp_path):
    port = free_port()
    env = {name: os.environ[name] for name in os.environ if not name.startswith("MLFLOW_")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MLFLOW_PORT": str(port),
        "MLFLOW_DATA": str(tmp_path / "data"),
        "MLFLOW_ALLOWED_HOSTS": "127.0.0.1:*,tracking.example.org",
        "MLFLOW_ALLOWED_ORIGINS": "https://tracking.example.org",
    }

    def status(path: str, **headers: str) -> int:
        body = json.dumps({"max_results": 1}).encode() if path != "health" else None
        address, kind = f"http://127.0.0.1:{port}/{path}", {"Content-Type": "application/json"}
        request = urllib.request.Request(address, body, {**kind, **headers})
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    search = "api/2.0/mlflow/experiments/search"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(["bash", SERVER], env=env, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_until(lambda: status("health") == 200 or process.poll() is not None)
        public = {"Host": "tracking.example.org", "Origin": "https://tracking.example.org"}
        assert status(search) == status(search, **public) == 200
        assert status(search, Host="evil.example.org") == 403
        assert status(search, Origin="https://evil.example.org") == 403
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert status("health") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log"]


@pytest.mark.slow
def test_import_mlflow_in_the_repository_finds_the_package():
    code = "import importlib.util; print(importlib.util.find_spec('mlflow').origin)"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert "site-packages" in found


# --- what travels with a job ---------------------------------------------------------------------


def packed(folder: Path, target: Path) -> set[str]:
    """The files of the package that `ray job submit --working-dir FOLDER` uploads."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    return {name for name in zipfile.ZipFile(target).namelist() if not name.endswith("/")}


def test_the_package_is_small_and_has_all_code_and_sweeps(tmp_path):
    names = packed(ROOT, tmp_path / "package.zip")
    assert (tmp_path / "package.zip").stat().st_size < 10 * 2**20
    every = [path for folder in ("fedray", "tune") for path in (ROOT / folder).rglob("*")]
    sources = [path for path in every if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in sources} <= names
    assert not [name for name in names if name.startswith((".git/", ".venv/", "tests/"))]


def test_data_results_weights_and_passwords_stay_here(tmp_path):
    here = tmp_path / "here"
    travels = "fedray/data/sources.py fedray/language/tiny.safetensors mine.yaml tune/mine.yaml"
    stays = (
        "data/cifar10/train.parquet data/a.py results/a/result.json fedray_results/x.json "
        "mlruns/0/meta.yaml mlflow.db checkpoints/round_1/meta.json model.pt .env mlflow/.env "
        "runs/a/client_0.safetensors key.pem clusters/laptop/a.sh tests/test_a.py job.log "
        "tune/__pycache__/a.pyc .venv-gpu/lib/a.py"
    )
    for name in (*travels.split(), *stays.split()):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).touch()
    for ignore in (".rayignore", ".gitignore"):
        shutil.copy(ROOT / ignore, here)
    names = packed(here, tmp_path / "package.zip")
    assert names == {*travels.split(), ".rayignore", ".gitignore"}
