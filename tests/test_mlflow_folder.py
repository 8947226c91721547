"""mlflow/: the tracking server's files, a real start of server.sh, and no shadow on the package."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import pinned

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "mlflow"
SERVER = FOLDER / "server.sh"


def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def server_options() -> set[str]:
    """The options that the installed `mlflow server` has."""
    from mlflow.cli import cli

    return {option for param in cli.commands["server"].params for option in param.opts}


# --- import mlflow stays MLflow ------------------------------------------------------------------


@pytest.mark.slow
def test_import_from_the_repository_root_finds_the_package():
    code = "import importlib.util; print(importlib.util.find_spec('mlflow').origin)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    origin = Path(done.stdout.strip())
    assert origin.is_file()
    assert origin.parts[-3:] == ("site-packages", "mlflow", "__init__.py")
    assert ROOT / "mlflow" not in origin.parents


# --- compose.yaml --------------------------------------------------------------------------------


def test_compose_runs_the_pinned_mlflow_and_no_floating_image():
    services = compose()["services"]
    for name in ("mlflow", "bucket"):
        assert services[name]["image"] == f"fedray-mlflow:{pinned('mlflow')}"
        assert f'"mlflow[auth]=={pinned("mlflow")}"' in services[name]["build"]["dockerfile_inline"]
    for service in services.values():
        tag = service["image"].rpartition(":")[2]
        assert tag != "latest"
        assert any(sign.isdigit() for sign in tag)


def test_compose_starts_a_server_with_passwords_and_options_that_exist():
    program, command, *options = compose()["services"]["mlflow"]["command"]
    assert (program, command) == ("mlflow", "server")
    given = dict(option.split("=", 1) for option in options)
    assert given.keys() <= server_options()
    assert given["--app-name"] == "basic-auth"
    assert given["--backend-store-uri"].startswith("postgresql")
    assert given["--artifacts-destination"].startswith("s3://")
    assert {"--allowed-hosts", "--cors-allowed-origins"} <= given.keys()


# --- server.sh -----------------------------------------------------------------------------------


def arguments_of_server(tmp_path: Path, *args: str, **env: str) -> list[str]:
    """What server.sh would call `mlflow` with."""
    tool = tmp_path / "bin" / "mlflow"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text('#!/usr/bin/env bash\necho "CALL $PWD"; printf "CALL %s\\n" "$@"\n')
    tool.chmod(0o755)
    base = {"PATH": f"{tool.parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["bash", SERVER, *args], env=base | env, capture_output=True, text=True, check=True
    )
    return [line[5:] for line in done.stdout.splitlines() if line.startswith("CALL ")]


@pytest.mark.slow
def test_server_script_defaults_to_this_machine(tmp_path):
    data = tmp_path / "home" / "fedray_mlflow"
    where, *call = arguments_of_server(tmp_path)
    assert where == str(data)
    assert call == [
        "server", "--host", "127.0.0.1", "--port", "5000", "--workers", "2",
        "--uvicorn-opts", "--timeout-worker-healthcheck 60",
        "--backend-store-uri", f"sqlite:///{data}/mlflow.db",
        "--artifacts-destination", f"{data}/artifacts",
    ]  # fmt: skip
    assert (data / "artifacts").is_dir()
    assert {word for word in call if word.startswith("--") and " " not in word} <= server_options()


@dataclass(frozen=True)
class Server:
    """A running server.sh."""

    port: int
    data: Path

    def status(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """server.sh on a free port, with data of its own; ended at the end."""
    folder = tmp_path_factory.mktemp("server")
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    env = {name: os.environ[name] for name in os.environ if not name.startswith("MLFLOW_")} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MLFLOW_PORT": str(port),
        "MLFLOW_DATA": str(folder / "data"),
        "MLFLOW_ALLOWED_HOSTS": "127.0.0.1:*,tracking.example.org",
        "MLFLOW_ALLOWED_ORIGINS": "https://tracking.example.org",
    }
    running = Server(port, folder / "data")
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(["bash", SERVER], env=env, cwd=folder, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while running.status("/health") != 200:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert running.status("/health") == 0
    assert sorted(path.name for path in folder.iterdir()) == ["data", "log"]


@pytest.mark.slow
def test_server_answers_under_its_names_only(server):
    search = "/api/2.0/mlflow/experiments/search"
    assert server.status("/health") == 200
    assert server.status(search, {"max_results": 1}) == 200
    public = {"Host": "tracking.example.org", "Origin": "https://tracking.example.org"}
    assert server.status(search, {"max_results": 1}, **public) == 200
    assert server.status(search, {"max_results": 1}, Host="evil.example.org") == 403
    assert server.status(search, {"max_results": 1}, Origin="https://evil.example.org") == 403
