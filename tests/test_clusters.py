"""clusters/ and .rayignore: manifests, scripts, tables and what travels with a job."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import pinned

from benchmarks.common import free_port

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = ROOT / "clusters"
START_HEAD, SBATCH = CLUSTERS / "laptop" / "start-head.sh", CLUSTERS / "slurm" / "sweep.sbatch"
SCRIPTS = [START_HEAD, SBATCH, ROOT / "mlflow" / "server.sh"]
TEXTS = sorted([*CLUSTERS.rglob("*.yaml"), *CLUSTERS.rglob("README.md"), START_HEAD, SBATCH])


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def load(name: str) -> Any:
    return yaml.safe_load((CLUSTERS / name).read_text())


def run_with(keys: list[str]) -> Any:
    """An experiment with these top-level keys, `workers=4` and the like, and defaults."""
    from fedray.config import Experiment, parse_assignments

    return Experiment(**dict(parse_assignments(keys)))


# --- manifests -----------------------------------------------------------------------------------


def test_runtime_env_is_one_for_ray_also_without_its_comments():
    from ray.runtime_env import RuntimeEnv

    text = (CLUSTERS / "runtime-env.yaml").read_text()
    opened = re.sub(r"^  # (?=[A-Z_]+: )", "  ", text, flags=re.MULTILINE)
    for given in map(yaml.safe_load, (text, opened)):
        assert RuntimeEnv(**given).env_vars() == given["env_vars"]


@pytest.mark.parametrize("name", ["cloud/aws.yaml", "cloud/local.yaml"])
def test_ray_up_accepts_and_copies_token_and_versions(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = load(name)
    ready = prepare_config(config)
    validate_config(ready)
    nodes = ready["available_node_types"].values()
    assert ready["max_workers"] >= sum(node["min_workers"] for node in nodes) > 0
    mounts = {Path(remote).name: local for remote, local in config["file_mounts"].items()}
    assert mounts == {"auth_token": "~/.ray/auth_token", "constraints.txt": "./constraints.txt"}
    assert any("RAY_AUTH_MODE=token" in line for line in config["initialization_commands"])


@pytest.mark.parametrize("name", ["rayjob", "raycluster"])
def test_kuberay_has_the_pinned_ray_tokens_and_workers_with_gpus_from_the_start(name):
    spec = load(f"kuberay/{name}.yaml")["spec"]
    spec = spec.get("rayClusterSpec", spec)
    assert (spec["rayVersion"], spec["authOptions"]) == (pinned("ray"), {"mode": "token"})
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}  # no trial on the head
    for group in spec["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] > 0
        (container,) = group["template"]["spec"]["containers"]
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) > 0


def test_the_rayjob_s_sweep_fits_its_nodes():
    from ray.runtime_env import RuntimeEnv

    from fedray.runtime.resources import at_a_time

    spec = load("kuberay/rayjob.yaml")["spec"]
    assert spec["backoffLimit"] == spec["submitterConfig"]["backoffLimit"] == 0
    RuntimeEnv(**yaml.safe_load(spec["runtimeEnvYAML"]))
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    nodes = [{"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])}]
    ((_, *rest),) = sweeps_in(spec["entrypoint"])
    experiment = run_with([argument for argument in rest if "=" in argument])
    assert experiment.gpus > 0
    assert at_a_time(experiment, nodes * group["replicas"]) == 2


# --- scripts -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=short)
def test_script_is_executable_bash(path):
    assert path.stat().st_mode & stat.S_IXUSR
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", [START_HEAD, SBATCH], ids=short)
def test_script_demands_tokens_and_hides_them(path):
    text = path.read_text()
    assert "export RAY_AUTH_MODE=token" in text
    assert "(umask 077 && ray get-auth-token --generate >/dev/null)" in text


# Stand-ins. `ray` makes a token, and `start` stays until it is ended. Nodes have the address
# $ADDRESS or their own $ADDRESS_name. `python` reads the command, waits for nodes, and sweeps.
TOOLS = {
    "ray": r"""
echo "ray $* mode=${RAY_AUTH_MODE:-}" >> "$LOG"
case "$1" in
  get-auth-token) mkdir -p ~/.ray; [[ -e ~/.ray/auth_token ]] || echo secret > ~/.ray/auth_token ;;
  start)
    for a in "$@"; do [[ $a == --port=* ]] && port=${a#*=}; done
    exec "$PYTHON" -c '
import os, signal, socket, sys
def end(*_):
    open(os.environ["LOG"], "a").write("ended " + sys.argv[1] + "\n"); os._exit(0)
signal.signal(signal.SIGTERM, end)
if sys.argv[2]:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
signal.pause()' "$(printf '%s ' "$@" | grep -o -- --head || echo worker)" "${port:-}" ;;
esac
""",
    "scontrol": r"""
echo "scontrol $*" >> "$LOG"
case "$*" in
  "show hostnames"*) for name in $NODES; do echo $name; done ;;
  *"show node"*) own="ADDRESS_${@: -1}"; echo "NodeName=x NodeAddr=${!own:-$ADDRESS} Port=1" ;;
esac
""",
    "srun": r"""
echo "srun $*" >> "$LOG"
while [[ "$1" == -* ]]; do shift; done; $KILLED exec "$@"
""",
    "python": r"""
echo "python $*" >> "$LOG"
case "$*" in
  *--plan) exit "${PLAN_STATUS:-0}" ;;
  "- "*) [[ -z "${JOIN_SECONDS:-}" ]] || exec sleep "$JOIN_SECONDS"; exit "${JOIN_STATUS:-0}" ;;
  *) exec bash -c "sleep ${SWEEP_SECONDS:-0}; exit ${SWEEP_STATUS:-0}" ;;
esac
""",
}


class Stage:
    """A folder and an environment in which the scripts find stand-ins for ray, Slurm and python."""

    def __init__(self, folder: Path) -> None:
        self.folder, tools, submit = folder, folder / "bin", folder / "submit" / ".venv" / "bin"
        for made in (tools, submit, folder / "home"):
            made.mkdir(parents=True)
        (submit / "activate").write_text("")
        for name, text in TOOLS.items():
            (tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (tools / name).chmod(0o755)
        self.env = {
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "LOG": str(folder / "log"),
            "PYTHON": sys.executable,
            "KILLED": "",
            "NODES": "localhost",
            "ADDRESS": "127.0.0.1",
            "RAY_TMPDIR": str(folder),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_NNODES": "1",
            "SLURM_CPUS_PER_TASK": "4",
            "SLURM_GPUS_ON_NODE": "2",
            "SLURM_SUBMIT_DIR": str(folder / "submit"),
            "MLFLOW_TRACKING_URI": "http://tracking.example.org:5000",
        }

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, script: Path, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a script."""
        pipe, command = subprocess.PIPE, ["bash", str(script), *args]
        return subprocess.Popen(command, env=self.env | env, stdout=pipe, stderr=pipe, text=True)

    def queue(self, *args: str, **env: str) -> tuple[int, str]:
        """Run a job; return its status and what it said."""
        running = self.start(SBATCH, *args, **env)
        said = "".join(running.communicate(timeout=120))
        return running.returncode, said


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage(tmp_path)


SWEEP = "fedtsp_lambda"
SWEEPS = f"python -m fedray.sweep {SWEEP}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        ([], {}, "name a sweep"),
        (
            [SWEEP],
            {"NODES": "a b", "ADDRESS": "127.0.1.1", "ADDRESS_b": "192.0.2.8"},
            "set HEAD_IP",
        ),
        ([SWEEP], {"NODES": "a", "ADDRESS": "no.such.host.invalid"}, "set HEAD_IP"),
        ([SWEEP], {"MLFLOW_TRACKING_URI": ""}, "mlflow/README.md"),
        ([SWEEP], {"PLAN_STATUS": "2"}, ""),
    ],
)
def test_sbatch_says_what_is_missing_before_ray_starts(stage, args, env, says):
    status, said = stage.queue(*args, **env)
    assert status == 2
    assert says in said
    assert not [line for line in stage.log if line.startswith("srun")]


@pytest.mark.slow
def test_sbatch_starts_waits_sweeps_and_ends_what_it_started(stage):
    status, said = stage.queue(SWEEP, "--scale", "paper", SLURM_MEM_PER_NODE="1000")
    assert status == 0, said
    (start,) = [line.split() for line in stage.log if line.startswith("ray start")]
    assert {
        "--head", "--block", "--dashboard-agent-listen-port=0", "--min-worker-port=0",
        "--max-worker-port=0", "--num-cpus=4", "--num-gpus=2", "mode=token",
        f"--object-store-memory={1000 * 2**20 * 3 // 10}",
    } <= {*start}  # fmt: skip
    (port,) = [int(word.partition("=")[2]) for word in start if word.startswith("--port=")]
    assert 20000 <= port < 32768  # where the kernel's own begin
    assert f"{SWEEPS} --scale paper" in stage.log
    assert stage.log[-1] == "ended --head"


@pytest.mark.slow
@pytest.mark.parametrize(("which", "status"), [("SWEEP_STATUS", 3), ("JOIN_STATUS", 1)])
def test_sbatch_ends_the_head_also_after_a_failure(stage, which, status):
    assert stage.queue(SWEEP, **{which: str(status)})[0] == status
    assert stage.log[-1] == "ended --head"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "env", "says"),
    [
        ("exit 1;", {}, "the head ended"),
        ("timeout -s KILL 4", {"SWEEP_SECONDS": "6", "SWEEP_STATUS": "1"}, "the head is lost"),
        ("timeout -s KILL 2", {"JOIN_SECONDS": "600"}, "the head is lost"),
    ],
)
def test_sbatch_is_queued_again_when_its_head_is_lost(stage, killed, env, says):
    srun = stage.folder / "bin" / "srun"
    srun.write_text(srun.read_text().replace("$KILLED exec", killed))
    status, said = stage.queue(SWEEP, **env)
    assert (status, says in said) == (75, True)
    assert f"scontrol requeue {os.getpid()}" in stage.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "env", "status", "queued"),
    [
        (signal.SIGTERM, {}, 143, False),
        (signal.SIGUSR1, {}, 75, True),
        (signal.SIGUSR1, {"SLURM_RESTART_COUNT": "3", "FEDRAY_MOST_RESTARTS": "3"}, 1, False),
    ],
    ids=["ended", "time limit", "too often"],
)
def test_sbatch_obeys_slurm_s_signals(stage, sent, env, status, queued):
    running = stage.start(SBATCH, SWEEP, SWEEP_SECONDS="60", **env)
    wait_until(lambda: SWEEPS in stage.log)
    running.send_signal(sent)
    assert running.wait(120) == status
    assert any("requeue" in line for line in stage.log) == queued


def wait_until(true: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "bound"),
    [
        ({}, {"--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"}),
        ({"FEDRAY_RAY_HOST": "10.0.0.1"}, {"--node-ip-address=10.0.0.1"}),
    ],
    ids=["this machine", "the network"],
)
def test_start_head_binds_where_it_is_told_and_guards_its_files(stage, env, bound):
    private = stage.folder / "ray"
    env = {"FEDRAY_RAY_TMP": str(private), "FEDRAY_RAY_PORT": str(free_port()), **env}
    running = stage.start(START_HEAD, "--num-cpus=3", **env)
    wait_until(lambda: any("ray start" in line for line in stage.log))
    running.terminate()
    running.communicate(timeout=120)
    (start,) = [line for line in stage.log if line.startswith("ray start")]
    assert {"--head", "--block", "--num-cpus=3", "mode=token", *bound} <= {*start.split()}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((stage.folder / "home/.ray/auth_token").stat().st_mode) == 0o600


@pytest.mark.ray
@pytest.mark.slow
def test_start_head_demands_the_token_and_ends_on_sigterm(tmp_path):
    port, dashboard = free_port(), free_port()
    private = tempfile.mkdtemp(prefix="fr", dir="/tmp")
    env = {name: os.environ[name] for name in os.environ if not name.startswith("RAY_")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FEDRAY_RAY_TMP": private,
        "FEDRAY_RAY_PORT": str(port),
        "FEDRAY_DASHBOARD_PORT": str(dashboard),
    }

    def ask(token: str | None) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        address = f"http://127.0.0.1:{dashboard}/api/jobs/"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    options = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(["bash", START_HEAD, *options], env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: ask(None) != 0, 60)
        assert ask(None) == 401
        token = (tmp_path / ".ray" / "auth_token").read_text().strip()
        wait_until(lambda: ask(token) == 200)
        running.send_signal(signal.SIGTERM)
        running.wait(120)
        assert ask(token) == 0
        with socket.socket() as one:
            assert one.connect_ex(("127.0.0.1", port)) != 0
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(120)
        shutil.rmtree(private, ignore_errors=True)


# --- words ---------------------------------------------------------------------------------------


def sweeps_in(text: str) -> list[list[str]]:
    """The arguments of every `python -m fedray.sweep ...` in a text, placeholders left out."""
    found = re.findall(r"python -m fedray\.sweep ([a-z][^`\n]*)", text)
    return [shlex.split(line, comments=True) for line in found]


def test_sweeps_in_the_texts_exist_and_their_arguments_parse():
    from fedray.cli.study import sweep

    found = [arguments for path in TEXTS for arguments in sweeps_in(path.read_text())]
    assert ["fedtsp_lambda"] in found
    for arguments in found:
        params = sweep.make_context("sweep", [*arguments]).params
        assert (ROOT / "tune" / f"{params['name']}.yaml").is_file(), params["name"]


def fits() -> list[tuple[str, ...]]:
    text = (CLUSTERS / "README.md").read_text()
    table = text.split("| Cluster | nodes |")[1].split("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in table]


@pytest.mark.parametrize("row", fits(), ids=lambda row: f"{row[0]}:{row[4]}")
def test_how_many_trials_fit_is_what_fedray_counts(row):
    from fedray.runtime.resources import at_a_time

    _, nodes, cpus, gpus, keys, arithmetic = row
    cluster = [{"CPU": float(cpus), "GPU": float(gpus)}] * int(nodes)
    count = at_a_time(run_with(keys.strip("`").split()), cluster)
    assert arithmetic.rpartition(" = ")[2] == str(count)


# --- what travels with a job ---------------------------------------------------------------------


def packed(folder: Path, target: Path) -> set[str]:
    """The files of the package that `ray job submit --working-dir FOLDER` uploads."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    return {name for name in zipfile.ZipFile(target).namelist() if not name.endswith("/")}


def sources() -> set[str]:
    every = [path for folder in ("fedray", "tune") for path in (ROOT / folder).rglob("*")]
    return {short(p) for p in every if p.is_file() and "__pycache__" not in p.parts}


def test_the_package_is_small_and_has_all_code_and_sweeps(tmp_path):
    names = packed(ROOT, tmp_path / "package.zip")
    assert (tmp_path / "package.zip").stat().st_size < 10 * 2**20
    assert {"tune/fedtsp_lambda.yaml", "fedray/data/sources/digits.py"} <= sources() <= names
    assert not [name for name in names if name.startswith((".git/", ".venv/", "tests/"))]


def test_data_results_weights_and_passwords_stay_here(tmp_path):
    here = tmp_path / "here"
    travels = ["fedray/data/sources.py", "fedray/language/tiny.safetensors", "mine.yaml",
               "tune/mine.yaml"]  # fmt: skip
    stays = [
        "data/cifar10/train.parquet", "data/a.py", "results/a/result.json", "fedray_results/x.json",
        "mlruns/0/meta.yaml", "mlflow.db", "checkpoints/round_1/meta.json", "model.pt",
        "runs/a/client_0.safetensors", ".env", "mlflow/.env", "key.pem", "clusters/laptop/a.sh",
        "tests/test_a.py", "tune/__pycache__/a.pyc", "job.log", ".venv-gpu/lib/a.py",
    ]  # fmt: skip
    for name in (*travels, *stays):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x")
    for ignore in (".rayignore", ".gitignore"):
        shutil.copy(ROOT / ignore, here)
    names = packed(here, tmp_path / "package.zip")
    assert names == {*travels, ".rayignore", ".gitignore"}
