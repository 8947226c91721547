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
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pages import pinned

from benchmarks.common import free_port

ROOT = Path(__file__).resolve().parents[1]
CLUSTERS = ROOT / "clusters"
SCRIPTS = [
    CLUSTERS / "laptop" / "start-head.sh",
    CLUSTERS / "slurm" / "sweep.sbatch",
]
ALL_SCRIPTS = [*SCRIPTS, ROOT / "mlflow" / "server.sh"]
YAMLS = sorted(CLUSTERS.rglob("*.yaml"))
READMES = sorted(CLUSTERS.rglob("README.md"))
RAY_UP = [CLUSTERS / "cloud" / "aws.yaml", CLUSTERS / "cloud" / "local.yaml"]

# Fields of KubeRay's ray.io/v1 that our manifests may use. The API server drops others in silence.
RAYJOB_FIELDS = {
    "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint",
    "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "jobId", "managedBy",
    "metadata", "preRunningDeadlineSeconds", "rayClusterSpec", "runtimeEnvYAML",
    "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate",
    "suspend", "ttlSecondsAfterFinished",
}  # fmt: skip
CLUSTER_FIELDS = {
    "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions",
    "headGroupSpec", "headServiceAnnotations", "managedBy", "rayVersion", "suspend",
    "upgradeStrategy", "workerGroupSpecs",
}  # fmt: skip
HEAD_FIELDS = {
    "enableIngress", "headService", "labels", "rayStartParams", "resources", "serviceType",
    "template",
}  # fmt: skip
GROUP_FIELDS = {
    "groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts",
    "rayStartParams", "replicas", "resources", "scaleStrategy", "suspend", "template",
}  # fmt: skip


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run_with(keys: list[str]) -> Any:
    """An experiment with these top-level keys, `workers=4` and the like, and defaults."""
    from fedray.config import Experiment, parse_assignments

    return Experiment(**dict(parse_assignments(keys)))


def sweeps_in(text: str) -> list[list[str]]:
    """The arguments of every `python -m fedray.sweep ...` in a text, placeholders left out."""
    found = re.findall(r"python -m fedray\.sweep ([a-z][^`\n]*)", text)
    return [shlex.split(line, comments=True) for line in found]


# --- YAML ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", YAMLS, ids=short)
def test_yaml_parses_to_a_mapping(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents
    assert all(isinstance(document, dict) and document for document in documents)


def test_runtime_env_is_one_for_ray():
    from ray.runtime_env import RuntimeEnv

    given = load(CLUSTERS / "runtime-env.yaml")
    assert RuntimeEnv(**given).env_vars() == given["env_vars"]
    assert given["env_vars"]["HF_HUB_OFFLINE"] == "1"


def test_runtime_env_becomes_valid_when_its_comments_are_taken_out():
    from ray.runtime_env import RuntimeEnv

    text = (CLUSTERS / "runtime-env.yaml").read_text()
    opened = yaml.safe_load(re.sub(r"^  # (?=[A-Z_]+: )", "  ", text, flags=re.MULTILINE))
    env = RuntimeEnv(**opened).env_vars()
    names = {"MLFLOW_TRACKING_URI", "FEDRAY_RESULTS", "FEDRAY_DATA", "FEDRAY_CACHE", "HF_HOME"}
    assert names <= env.keys()
    assert all(env[name].startswith(("/", "http://")) for name in names)


# --- ray up --------------------------------------------------------------------------------------


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    ready = prepare_config(config)
    validate_config(ready)
    return ready


@pytest.mark.parametrize("path", RAY_UP, ids=short)
def test_ray_up_accepts(path):
    ready = prepared(load(path))
    nodes = ready["available_node_types"].values()
    assert ready["max_workers"] >= sum(node["min_workers"] for node in nodes) > 0


@pytest.mark.parametrize("path", RAY_UP, ids=short)
def test_ray_up_would_refuse_an_unknown_key(path):
    with pytest.raises(jsonschema.ValidationError, match="idle_timeout"):
        prepared({**load(path), "idle_timeout": 5})


@pytest.mark.parametrize("path", RAY_UP, ids=short)
def test_ray_up_copies_token_and_versions(path):
    config = load(path)
    mounts = {Path(remote).name: local for remote, local in config["file_mounts"].items()}
    assert mounts == {"auth_token": "~/.ray/auth_token", "constraints.txt": "./constraints.txt"}
    home = f"/home/{config['auth']['ssh_user']}/"
    assert all(remote.startswith(home) for remote in config["file_mounts"])
    assert any("RAY_AUTH_MODE=token" in line for line in config["initialization_commands"])
    assert any("constraints.txt" in line for line in config["setup_commands"])


def test_aws_has_an_idle_head_and_spot_workers_from_the_start():
    config = load(CLUSTERS / "cloud" / "aws.yaml")
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0}
    spot = types["gpu_spot"]
    assert spot["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert spot["min_workers"] == spot["max_workers"] == config["max_workers"]
    assert "InstanceMarketOptions" not in types["gpu_on_demand"]["node_config"]
    assert len({node["node_config"]["ImageId"] for node in types.values()}) == 1


def test_local_counts_its_workers():
    config = load(CLUSTERS / "cloud" / "local.yaml")
    workers = len(config["provider"]["worker_ips"])
    assert config["min_workers"] == config["max_workers"] == workers
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert any("ray start" in line for line in config[commands])


# --- KubeRay -------------------------------------------------------------------------------------


@pytest.fixture(params=["rayjob.yaml", "raycluster.yaml"])
def manifest(request) -> dict[str, Any]:
    return load(CLUSTERS / "kuberay" / request.param)


def cluster_spec(manifest: Mapping[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return spec["rayClusterSpec"] if manifest["kind"] == "RayJob" else spec


def pods(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The head's and the workers' pod specs."""
    spec = cluster_spec(manifest)
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_manifest_has_only_known_fields(manifest):
    assert manifest["apiVersion"] == "ray.io/v1"
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest["metadata"]["name"])
    if manifest["kind"] == "RayJob":
        assert set(manifest["spec"]) <= RAYJOB_FIELDS
    spec = cluster_spec(manifest)
    assert set(spec) <= CLUSTER_FIELDS
    assert set(spec["headGroupSpec"]) <= HEAD_FIELDS
    for group in spec["workerGroupSpecs"]:
        assert set(group) <= GROUP_FIELDS


def test_manifest_runs_the_pinned_ray_with_tokens(manifest):
    spec = cluster_spec(manifest)
    assert spec["rayVersion"] == pinned("ray")
    assert spec["authOptions"] == {"mode": "token"}


def test_manifest_keeps_trials_off_the_head(manifest):
    params = cluster_spec(manifest)["headGroupSpec"]["rayStartParams"]
    assert params == {"num-cpus": "0"}


def test_manifest_workers_are_there_from_the_start_and_have_gpus(manifest):
    spec = cluster_spec(manifest)
    assert not spec.get("enableInTreeAutoscaling")
    for group in spec["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] > 0
        (container,) = group["template"]["spec"]["containers"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert int(resources["limits"]["nvidia.com/gpu"]) > 0
        tolerated = [one["key"] for one in group["template"]["spec"]["tolerations"]]
        assert tolerated == ["nvidia.com/gpu"]


def test_manifest_pods_share_image_volume_and_secret(manifest):
    specs = pods(manifest)
    containers = [container for pod in specs for container in pod["containers"]]
    dockerfile = (CLUSTERS / "kuberay" / "Dockerfile").read_text()
    (image,) = {container["image"] for container in containers}
    assert image.endswith(f"/fedray:{project()['version']}")
    assert f"-t {image} " in dockerfile
    claim = load(CLUSTERS / "kuberay" / "storage.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in specs:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"] == {
            "claimName": claim["metadata"]["name"]
        }
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            assert container["envFrom"] == [{"secretRef": {"name": "fedray-mlflow"}}]
            assert all(isinstance(one["value"], str) for one in container.get("env", []))


def test_manifest_paths_lie_on_mounted_volumes(manifest):
    if manifest["kind"] == "RayJob":
        env = yaml.safe_load(manifest["spec"]["runtimeEnvYAML"])["env_vars"]
    else:
        found = [
            {one["name"]: one["value"] for one in container["env"]}
            for pod in pods(manifest)
            for container in pod["containers"]
        ]
        env = found[0]
        assert all(one == env for one in found)
    assert {name: env[name].split("/")[1] for name in env if env[name].startswith("/")} == {
        "FEDRAY_RESULTS": "shared",
        "FEDRAY_DATA": "shared",
        "HF_HOME": "shared",
        "FEDRAY_CACHE": "cache",
    }


def test_rayjob_starts_one_sweep_once_and_goes():
    from ray.runtime_env import RuntimeEnv

    from fedray.runtime.resources import at_a_time

    manifest = load(CLUSTERS / "kuberay" / "rayjob.yaml")
    spec = manifest["spec"]
    assert manifest["kind"] == "RayJob"
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["backoffLimit"] == spec["submitterConfig"]["backoffLimit"] == 0
    RuntimeEnv(**yaml.safe_load(spec["runtimeEnvYAML"]))
    ((name, *rest),) = sweeps_in(spec["entrypoint"])
    assert (ROOT / "tune" / f"{name}.yaml").is_file()
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    nodes = [{"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])}]
    keys = [argument for argument in rest if "=" in argument]
    experiment = run_with(keys)
    assert experiment.gpus > 0
    assert at_a_time(experiment, nodes * group["replicas"]) == 2


def test_dockerfile_builds_what_is_here_on_the_pinned_ray():
    lines = (CLUSTERS / "kuberay" / "Dockerfile").read_text().splitlines()
    (base,) = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert base == f"rayproject/ray:{pinned('ray')}-py311-gpu"
    assert project()["requires-python"] == ">=3.11"
    copied = [
        source
        for line in lines
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
        if not source.startswith("--")
    ]
    assert set(copied) == {
        "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "fedray", "tune"
    }  # fmt: skip
    assert all((ROOT / source).exists() for source in copied)


# --- scripts -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL_SCRIPTS, ids=short)
def test_script_is_executable_bash(path):
    assert path.stat().st_mode & stat.S_IXUSR
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", ALL_SCRIPTS, ids=short)
def test_script_passes_shellcheck(path):
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", [*SCRIPTS, *YAMLS], ids=short)
def test_nothing_is_ended_by_name(path):
    ending = re.compile(r"\bray\s+stop\b|\bpkill\b|\bkillall\b|\bscancel\b")
    assert not ending.search(path.read_text())
    assert ending.search("ray stop --force")


@pytest.mark.parametrize("path", SCRIPTS, ids=short)
def test_script_demands_tokens_and_hides_them(path):
    text = path.read_text()
    assert "export RAY_AUTH_MODE=token" in text
    assert "(umask 077 && ray get-auth-token --generate >/dev/null)" in text
    assert 'export RAY_enable_metrics_collection="${RAY_enable_metrics_collection:-0}"' in text


TOKEN_LINES = re.compile(r"^if \[\[ -z .*?^if \[\[ -O [^\n]*$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["home", "path"])
@pytest.mark.parametrize("path", SCRIPTS, ids=short)
def test_script_takes_the_token_from_others_but_follows_no_link(stage, tmp_path, path, elsewhere):
    (lines,) = TOKEN_LINES.findall(path.read_text())
    token = tmp_path / "home" / ".ray" / "auth_token"
    env = dict(stage)
    if elsewhere:
        token = tmp_path / "token"
        env["RAY_AUTH_TOKEN_PATH"] = str(token)
    token.parent.mkdir(exist_ok=True)
    token.write_text("secret")
    token.chmod(0o644)
    subprocess.run(["bash", "-euc", lines], env=env, check=True, timeout=120)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    target = token.rename(tmp_path / "target")
    target.chmod(0o644)
    token.symlink_to(target)
    subprocess.run(["bash", "-euc", lines], env=env, check=True, timeout=120)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def put(folder: Path, name: str, text: str) -> None:
    """An executable of this name."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# A `ray` that does what the scripts need: it makes a token, and `start` stays until it is ended.
RAY = r"""
echo "ray $* mode=${RAY_AUTH_MODE:-} cluster=${RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER:-}" >> "$LOG"
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
"""


# Nodes have the address $ADDRESS, or their own $ADDRESS_name.
SCONTROL = r"""
echo "scontrol $*" >> "$LOG"
case "$*" in
  "show hostnames"*) for name in $NODES; do echo $name; done ;;
  *"show node"*) own="ADDRESS_${@: -1}"; echo "NodeName=x NodeAddr=${!own:-$ADDRESS} Port=1" ;;
esac
"""
# A `python` that reads the command line, waits for nodes, and sweeps.
PYTHON = r"""
echo "python $*" >> "$LOG"
case "$*" in
  *--plan) exit "${PLAN_STATUS:-0}" ;;
  "- "*) [[ -z "${JOIN_SECONDS:-}" ]] || exec sleep "$JOIN_SECONDS"; exit "${JOIN_STATUS:-0}" ;;
  *) exec bash -c "sleep ${SWEEP_SECONDS:-0}; exit ${SWEEP_STATUS:-0}" ;;
esac
"""


@pytest.fixture
def stage(tmp_path) -> dict[str, str]:
    """An environment in which the scripts find stand-ins for ray, Slurm and python."""
    tools = tmp_path / "bin"
    (tmp_path / "submit" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "submit" / ".venv" / "bin" / "activate").write_text("")
    (tmp_path / "home").mkdir()
    tools.mkdir()
    put(tools, "ray", RAY)
    put(tools, "scontrol", SCONTROL)
    put(tools, "python", PYTHON)
    job = str(os.getpid())
    return {
        "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "LOG": str(tmp_path / "log"),
        "PYTHON": sys.executable,
        "NODES": "localhost",
        "ADDRESS": "127.0.0.1",
        "RAY_TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_SUBMIT_DIR": str(tmp_path / "submit"),
        "MLFLOW_TRACKING_URI": "http://tracking.example.org:5000",
    }


def bash(script: Path, *args: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script, *args], env=env, capture_output=True, text=True, timeout=60, check=False
    )


SBATCH = CLUSTERS / "slurm" / "sweep.sbatch"
SRUN = r"""
echo "srun $*" >> "$LOG"
while [[ "$1" == -* ]]; do shift; done; exec "$@"
"""
ALONE = ("fedtsp_lambda",)
SWEEPS = "python -m fedray.sweep fedtsp_lambda"


def option(line: str, name: str) -> str:
    """What follows `--name=` in a command."""
    found = re.search(rf"{name}=(\S+)", line)
    assert found, line
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        ([], {}, "name a sweep"),
        (ALONE, {"NODES": "a b", "ADDRESS": "127.0.1.1", "ADDRESS_b": "192.0.2.8"}, "set HEAD_IP"),
        (ALONE, {"NODES": "a", "ADDRESS": "no.such.host.invalid"}, "set HEAD_IP"),
        (ALONE, {"MLFLOW_TRACKING_URI": ""}, "mlflow/README.md"),
        (ALONE, {"PLAN_STATUS": "2"}, ""),
    ],
)
def test_sbatch_says_what_is_missing_before_ray_starts(stage, tmp_path, args, env, says):
    put(tmp_path / "bin", "srun", SRUN)
    done = bash(SBATCH, *args, env=stage | env)
    assert done.returncode == 2
    assert says in done.stderr
    assert not [line for line in lines_of(tmp_path / "log") if line.startswith("srun")]


@pytest.mark.slow
def test_sbatch_starts_waits_sweeps_and_ends_what_it_started(stage, tmp_path):
    put(tmp_path / "bin", "srun", SRUN)
    stage |= {"SLURM_MEM_PER_NODE": "1000", "RAY_TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t").mkdir()
    done = bash(SBATCH, *ALONE, "--scale", "paper", env=stage)
    assert done.returncode == 0, done.stderr
    log = lines_of(tmp_path / "log")
    (start,) = [line for line in log if line.startswith("ray start")]
    port = int(option(start, "--port"))
    job = int(stage["SLURM_JOB_ID"])
    assert (port - 20000 - job % 1270 * 10) % 10 == 0
    for one in (
        "--head", "--block", f"--dashboard-port={port + 1}",
        f"--ray-client-server-port={port + 2}", "--dashboard-agent-listen-port=0",
        "--min-worker-port=0", "--max-worker-port=0", "--num-cpus=4", "--num-gpus=2",
        f"--object-store-memory={1000 * 2**20 * 3 // 10}", "mode=token",
    ):  # fmt: skip
        assert one in start.split()
    assert "python -m fedray.sweep fedtsp_lambda --scale paper" in log
    assert log[-1] == "ended --head"
    private = Path(option(start, "--temp-dir")).parent
    assert private.name.startswith(f"ray-{job}.")
    assert private.parent == tmp_path / "t"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.mark.slow
@pytest.mark.parametrize(("which", "status"), [("SWEEP_STATUS", 3), ("JOIN_STATUS", 1)])
def test_sbatch_ends_the_head_also_after_a_failure(stage, tmp_path, which, status):
    put(tmp_path / "bin", "srun", SRUN)
    done = bash(SBATCH, *ALONE, env=stage | {which: str(status)})
    assert done.returncode == status
    assert lines_of(tmp_path / "log")[-1] == "ended --head"


@pytest.mark.slow
def test_sbatch_ends_the_head_when_it_is_ended_itself(stage, tmp_path):
    running = start_sweeping(stage, tmp_path)
    running.terminate()
    assert running.wait(120) == 143
    assert lines_of(tmp_path / "log")[-1] == "ended --head"


def start_sweeping(stage: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """A job whose sweep takes a minute, and has begun."""
    put(folder / "bin", "srun", SRUN)
    running = subprocess.Popen(["bash", SBATCH, *ALONE], env=stage | {"SWEEP_SECONDS": "60"})
    wait_until(lambda: SWEEPS in lines_of(folder / "log"))
    return running


@pytest.mark.slow
def test_sbatch_is_queued_again_when_its_head_did_not_start(stage, tmp_path):
    put(tmp_path / "bin", "srun", "exit 1")
    done = bash(SBATCH, *ALONE, env=stage)
    assert done.returncode == 75
    assert "the head ended" in done.stdout
    assert f"scontrol requeue {stage['SLURM_JOB_ID']}" in lines_of(tmp_path / "log")


@pytest.mark.slow
def test_sbatch_is_queued_again_when_its_head_is_lost(stage, tmp_path):
    put(tmp_path / "bin", "srun", SRUN.replace("exec", "timeout -s KILL 4"))
    done = bash(SBATCH, *ALONE, env=stage | {"SWEEP_SECONDS": "6", "SWEEP_STATUS": "1"})
    assert done.returncode == 75
    assert "the head is lost" in done.stdout
    assert f"scontrol requeue {stage['SLURM_JOB_ID']}" in lines_of(tmp_path / "log")


@pytest.mark.slow
def test_sbatch_is_queued_again_when_its_head_is_lost_while_nodes_join(stage, tmp_path):
    """Ray waits without end for a head that is gone."""
    put(tmp_path / "bin", "srun", SRUN.replace("exec", "timeout -s KILL 2"))
    done = bash(SBATCH, *ALONE, env=stage | {"JOIN_SECONDS": "600"})
    assert done.returncode == 75
    assert "the head is lost" in done.stdout
    assert SWEEPS not in lines_of(tmp_path / "log")


@pytest.mark.slow
def test_sbatch_queues_itself_again_before_the_time_limit(stage, tmp_path):
    running = start_sweeping(stage, tmp_path)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(120) == 75
    assert f"scontrol requeue {stage['SLURM_JOB_ID']}" in lines_of(tmp_path / "log")


@pytest.mark.slow
def test_sbatch_is_queued_again_so_often_and_no_oftener(stage, tmp_path):
    stage |= {"SLURM_RESTART_COUNT": "3", "FEDRAY_MOST_RESTARTS": "3"}
    running = start_sweeping(stage, tmp_path)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(120) == 1
    assert not any("requeue" in line for line in lines_of(tmp_path / "log"))
    done = bash(SBATCH, *ALONE, env=stage | {"SLURM_RESTART_COUNT": "4"})
    assert done.returncode == 1
    assert "FEDRAY_MOST_RESTARTS allows 3" in done.stderr


def test_job_ports_lie_below_those_of_the_kernel():
    base = re.search(r"\$\(\( (\d+) \+ SLURM_JOB_ID % (\d+) \* (\d+) \)\)", SBATCH.read_text())
    assert base
    first, modulo, step = map(int, base.groups())
    assert first + (modulo - 1) * step + step - 1 < 32768


# --- laptop --------------------------------------------------------------------------------------

START_HEAD = CLUSTERS / "laptop" / "start-head.sh"


def wait_until(true: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.slow
def test_start_head_binds_to_this_machine_and_guards_its_files(stage, tmp_path):
    private = tmp_path / "ray"
    env = stage | {"FEDRAY_RAY_TMP": str(private), "FEDRAY_RAY_PORT": str(free_port())}
    running = subprocess.Popen(
        ["bash", START_HEAD, "--num-cpus=3"], env=env, stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: any("ray start" in line for line in lines_of(tmp_path / "log")))
    running.terminate()
    printed, _ = running.communicate(timeout=120)
    (start,) = [line for line in lines_of(tmp_path / "log") if line.startswith("ray start")]
    port = int(env["FEDRAY_RAY_PORT"])
    for option in (
        "--head", "--block", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1",
        f"--port={port}", f"--ray-client-server-port={port + 1}",
        f"--dashboard-agent-listen-port={port + 2}", f"--temp-dir={private}/r", "--num-cpus=3",
        "mode=token", "cluster=0",
    ):  # fmt: skip
        assert option in start.split()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home/.ray/auth_token").stat().st_mode) == 0o600
    assert "RAY_AUTH_MODE=token RAY_API_SERVER_ADDRESS=http://127.0.0.1:8265" in printed


@pytest.mark.slow
def test_start_head_opens_to_the_network_when_told_so(stage, tmp_path):
    env = stage | {"FEDRAY_RAY_TMP": str(tmp_path / "ray"), "FEDRAY_RAY_HOST": "10.0.0.1"}
    running = subprocess.Popen(["bash", START_HEAD], env=env, stdout=subprocess.DEVNULL)
    wait_until(lambda: any("ray start" in line for line in lines_of(tmp_path / "log")))
    running.terminate()
    running.wait(120)
    (start,) = [line for line in lines_of(tmp_path / "log") if line.startswith("ray start")]
    assert {"--node-ip-address=10.0.0.1", "mode=token", "cluster="} <= set(start.split())


@pytest.mark.slow
def test_start_head_needs_ray(stage, tmp_path):
    (tmp_path / "bin" / "ray").unlink()
    done = bash(START_HEAD, env=stage | {"FEDRAY_RAY_TMP": str(tmp_path / "ray")})
    assert done.returncode == 2
    assert "no 'ray' on PATH" in done.stderr


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
    log = (tmp_path / "log").open("w")
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


@pytest.mark.parametrize("path", [*READMES, *SCRIPTS, *YAMLS], ids=short)
def test_sweeps_in_the_texts_exist_and_their_arguments_parse(path):
    from fedray.cli.study import sweep

    for arguments in sweeps_in(path.read_text()):
        params = sweep.make_context("sweep", list(arguments)).params
        assert (ROOT / "tune" / f"{params['name']}.yaml").is_file(), params["name"]
        assert all("=" in key for key in params["keys"])


def test_sweeps_are_found_in_texts():
    text = "`python -m fedray.sweep a --scale paper gpus=1`\npython -m fedray.sweep NAME"
    assert sweeps_in(text) == [["a", "--scale", "paper", "gpus=1"]]
    everywhere = "\n".join(path.read_text() for path in [*READMES, *YAMLS])
    assert ["fedtsp_lambda"] in sweeps_in(everywhere)


def test_readme_names_every_kind_and_the_pinned_ray():
    text = (CLUSTERS / "README.md").read_text()
    for folder in ("laptop", "cloud", "kuberay", "slurm"):
        assert f"]({folder}/README.md)" in text
    assert f"same Ray, {pinned('ray')}," in text


def fits() -> list[tuple[str, ...]]:
    text = (CLUSTERS / "README.md").read_text()
    table = text.split("| Cluster | nodes |")[1].split("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in table]


@pytest.mark.parametrize("row", fits(), ids=lambda row: f"{row[0]}:{row[4]}")
def test_how_many_trials_fit_is_what_fedray_counts(row):
    from fedray.runtime.resources import at_a_time

    _, nodes, cpus, gpus, keys, arithmetic = row
    experiment = run_with(keys.strip("`").split())
    cluster = [{"CPU": float(cpus), "GPU": float(gpus)}] * int(nodes)
    parts, _, count = arithmetic.rpartition(" = ")
    assert at_a_time(experiment, cluster) == int(count)
    quotients = [(float(a), float(b)) for a, b in re.findall(r"([\d.]+)/([\d.]+)", parts)]
    assert int(min(a / b for a, b in quotients)) == int(count)
    assert quotients[0][0] == int(nodes) * int(cpus)
    assert len(quotients) == 1 or quotients[1] == (int(nodes) * int(gpus), experiment.gpus)


# --- what travels with a job ---------------------------------------------------------------------


def packed(folder: Path, target: Path) -> set[str]:
    """The files of the package that `ray job submit --working-dir FOLDER` uploads."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    return {name for name in zipfile.ZipFile(target).namelist() if not name.endswith("/")}


def sources() -> set[str]:
    return {
        short(path)
        for folder in ("fedray", "tune")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_package_is_small_and_has_all_code_and_sweeps(tmp_path):
    names = packed(ROOT, tmp_path / "package.zip")
    assert (tmp_path / "package.zip").stat().st_size < 10 * 2**20
    assert sources() <= names
    assert "tune/fedtsp_lambda.yaml" in names
    assert any(name.startswith("fedray/data/") and name.endswith(".py") for name in names)
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
