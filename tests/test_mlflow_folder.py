"""mlflow/: the tracking server's files, a real start of server.sh, and no shadow on the package."""

from __future__ import annotations

import configparser
import json
import os
import re
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


def settings() -> dict[str, str]:
    lines = (FOLDER / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


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


def test_compose_has_the_services_and_only_what_is_meant_is_reachable():
    services = compose()["services"]
    assert set(services) == {"mlflow", "postgres", "storage", "bucket", "tls"}
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {
        "mlflow": ["${MLFLOW_BIND:-127.0.0.1}:${MLFLOW_PORT:-5000}:5000"],
        "tls": ["80:80", "443:443"],
    }
    assert services["storage"]["profiles"] == services["bucket"]["profiles"] == ["storage"]
    assert services["tls"]["profiles"] == ["tls"]


def test_compose_waits_for_services_that_can_become_ready():
    services = compose()["services"]
    for service in services.values():
        for name, need in service.get("depends_on", {}).items():
            if need["condition"] == "service_healthy":
                assert services[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
            else:
                assert need["condition"] == "service_completed_successfully"
                assert services[name]["restart"] == "no"
            # One that a profile leaves out must not be needed by one that is always there.
            same = set(services[name].get("profiles", [])) <= set(service.get("profiles", []))
            assert same or need["required"] is False


def test_compose_declares_its_volumes_and_mounts_files_that_exist():
    tree = compose()
    used = [mount for service in tree["services"].values() for mount in service.get("volumes", [])]
    named = {mount.split(":")[0] for mount in used if not mount.startswith(".")}
    assert named == set(tree["volumes"])
    for mount in used:
        if mount.startswith("."):
            assert (FOLDER / mount.split(":")[0]).is_file()


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


def test_compose_and_env_example_name_the_same_settings():
    text = (FOLDER / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{([A-Z0-9_]+)", text)) == settings().keys() - {"COMPOSE_PROFILES"}
    assert settings()["COMPOSE_PROFILES"] == "storage"


def test_compose_refuses_to_start_without_secrets():
    secrets = {name for name, value in settings().items() if not value}
    assert secrets == {
        "POSTGRES_PASSWORD",
        "MLFLOW_AUTH_ADMIN_PASSWORD",
        "MLFLOW_FLASK_SERVER_SECRET_KEY",
        "AWS_SECRET_ACCESS_KEY",
    }
    text = (FOLDER / "compose.yaml").read_text()
    for name in secrets:
        uses = re.findall(rf"\$\{{{name}([^}}]*)\}}", text)
        assert uses
        assert all(use.startswith(":?") for use in uses)


def test_the_filled_env_is_not_committed():
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    assert not (FOLDER / ".env").exists()


def test_auth_config_has_only_keys_of_the_package_and_points_at_postgres():
    import mlflow

    ours, theirs = configparser.ConfigParser(), configparser.ConfigParser()
    ours.read(FOLDER / "basic_auth.ini")
    theirs.read(Path(mlflow.__file__).parent / "server" / "auth" / "basic_auth.ini")
    assert set(ours["mlflow"]) <= set(theirs["mlflow"])
    assert ours["mlflow"]["default_permission"] == "EDIT"
    assert ours["mlflow"]["authorization_function"] == theirs["mlflow"]["authorization_function"]
    command = compose()["services"]["mlflow"]["command"]
    assert f"--backend-store-uri={ours['mlflow']['database_uri']}" in command


def test_server_script_and_compose_agree_where_both_have_a_say():
    words = compose()["services"]["mlflow"]["command"]
    (workers,) = [word.split("=", 1)[1] for word in words if word.startswith("--uvicorn-opts")]
    assert f'--uvicorn-opts "{workers}"' in SERVER.read_text()
    options = set(re.findall(r"(--[a-z-]+)[ =]", SERVER.read_text().split("options=", 1)[1]))
    of_both = {word.split("=")[0] for word in words if word.startswith("--")}
    assert options - {"--timeout-worker-healthcheck"} <= of_both


# --- server.sh -----------------------------------------------------------------------------------


def test_server_script_has_options_that_exist():
    assert set(re.findall(r"^\s+\S*?(--[a-z-]+) \"", SERVER.read_text(), re.MULTILINE)) <= (
        server_options()
    )


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


@pytest.mark.slow
def test_server_script_hands_on_what_is_set(tmp_path):
    _, *call = arguments_of_server(
        tmp_path,
        "--app-name",
        "basic-auth",
        MLFLOW_HOST="0.0.0.0",
        MLFLOW_PORT="5555",
        MLFLOW_DATA=str(tmp_path / "mine"),
        MLFLOW_ALLOWED_HOSTS="gpu1:*",
        MLFLOW_ALLOWED_ORIGINS="http://gpu1:5555",
    )
    for option, value in {
        "--host": "0.0.0.0",
        "--port": "5555",
        "--backend-store-uri": f"sqlite:///{tmp_path}/mine/mlflow.db",
        "--allowed-hosts": "gpu1:*",
        "--cors-allowed-origins": "http://gpu1:5555",
        "--app-name": "basic-auth",
    }.items():
        assert call[call.index(option) + 1] == value
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


# --- words ---------------------------------------------------------------------------------------


def test_readme_and_scripts_name_only_options_that_exist():
    text = "\n".join(path.read_text() for path in [FOLDER / "README.md", SERVER])
    named = set(re.findall(r"(?<![\w-])(--[a-z]+(?:-[a-z]+)*)", text))
    # docker compose, pg_restore, uvicorn
    of_others = {"--build", "--rm", "--clean", "--timeout-worker-healthcheck"}
    assert named - of_others <= server_options()
    assert {"--app-name", "--allowed-hosts", "--cors-allowed-origins"} <= named
