"""What keeps a local Ray to its user: the token's file, the folder, the address."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import ray_constants, services, utils
from ray._private.node import Node

from benchmarks.common import ray_folder
from fedray.errors import UserError
from fedray.runtime import cluster
from fedray.runtime.cluster import _call_in_lasting_thread, connect
from fedray.runtime.local_ray import (
    LONGEST_SOCKET,
    SOCKET,
    UNUSED,
    few_processes,
    guard_token,
    is_loopback,
    private_folder,
    quiet_about_tokens,
)

METRICS = "RAY_enable_metrics_collection"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty home, tokens switched on, and files that others may read by default."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("fedray.runtime.local_ray.LONGEST_SOCKET", 1000)  # no socket is opened
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


@pytest.fixture
def asked(home, monkeypatch) -> list[dict[str, Any]]:
    """What `connect` asks of Ray, which is not started; and what Ray then takes 127.0.0.1 for."""
    calls: list[dict[str, Any]] = []

    def init(**options):
        calls.append({**options, "keeps_loopback": not ray_constants.ENABLE_RAY_CLUSTER})

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    return calls


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- the token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{}, {"RAY_AUTH_MODE": "token"}])
def test_a_token_is_made_for_its_user_alone(home, monkeypatch, setting):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    guard_token()
    token = home / ".ray" / "auth_token"
    assert len(token.read_text()) == 64
    assert mode(token) == 0o600
    assert mode(token.parent) == 0o700
    assert [path.name for path in token.parent.iterdir()] == ["auth_token"]


def test_ray_reads_the_token_that_is_made(home):
    from ray._raylet import AuthenticationTokenLoader

    loader = AuthenticationTokenLoader.instance()
    guard_token()
    token = (home / ".ray" / "auth_token").read_text()
    try:
        loader.reset_cache()
        assert loader.get_raw_token(ignore_auth_mode=True) == token
    finally:
        loader.reset_cache()


def test_a_token_that_is_there_is_used_again(home, capsys):
    guard_token()
    before = (home / ".ray" / "auth_token").read_text()
    guard_token()
    assert (home / ".ray" / "auth_token").read_text() == before
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("given", [".ray/auth_token", "elsewhere/token"])
def test_a_token_that_others_can_read_is_taken_from_them_and_said_so(
    home, monkeypatch, capsys, given
):
    path = home / given
    if given != ".ray/auth_token":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    path.parent.mkdir()
    path.write_text("secret")
    path.chmod(0o644)
    guard_token()
    assert mode(path) == 0o600
    assert path.read_text() == "secret"
    assert f"{path} was readable by other users (mode 644)" in capsys.readouterr().err


@pytest.mark.parametrize("before", [0o400, 0o600, 0o440])
def test_no_mode_is_loosened(home, before):
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("secret")
    path.chmod(before)
    guard_token()
    assert mode(path) == before & 0o700


def test_a_symbolic_link_is_not_followed(home, capsys):
    target = home / "shared"
    target.write_text("secret")
    target.chmod(0o644)
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").symlink_to(target)
    guard_token()
    assert mode(target) == 0o644
    assert (
        "was readable by other users (mode 644); it belongs to another" in capsys.readouterr().err
    )


def test_a_link_that_leads_nowhere_is_not_written_through(home):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").symlink_to(home / "planted")
    with pytest.raises(UserError, match="is not a file with Ray's token"):
        guard_token()
    assert not (home / "planted").exists()


@pytest.mark.parametrize("what", ["empty", "folder"])
def test_a_token_file_without_a_token_is_refused(home, what):
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.mkdir() if what == "folder" else path.touch(0o600)
    with pytest.raises(UserError, match=r"auth_token is not a file with Ray's token; delete it"):
        guard_token()


def test_a_token_that_cannot_be_written_is_refused(home):
    (home / ".ray").write_text("a file")
    with pytest.raises(UserError, match="set RAY_AUTH_TOKEN_PATH to a writable file"):
        guard_token()


@pytest.mark.parametrize("setting", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "secret"}])
def test_nothing_is_written_where_no_file_is_asked_for(home, monkeypatch, setting):
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    guard_token()
    assert list(home.iterdir()) == []


# --- the folder ----------------------------------------------------------------------------------


def test_only_its_user_enters_the_folder(home):
    folder = private_folder()
    assert folder.parent == home
    assert mode(folder) == 0o700
    folder.chmod(0o755)
    assert private_folder() == folder
    assert mode(folder) == 0o700


def test_a_folder_that_somebody_planted_is_refused(home, monkeypatch):
    (home / "theirs").mkdir()
    (home / f"fedray-{os.geteuid()}").symlink_to(home / "theirs")
    with pytest.raises(UserError, match=r"belongs to another user; set RAY_TMPDIR"):
        private_folder()
    (home / f"fedray-{os.geteuid()}").unlink()
    folder = private_folder()
    owner = folder.stat().st_uid
    folder.rename(home / f"fedray-{owner + 1}")
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UserError, match="belongs to another user"):
        private_folder()


def test_a_folder_that_cannot_be_made_is_refused(home, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(home / "nowhere"))
    with pytest.raises(UserError, match=r"cannot be created \(No such file or directory\)"):
        private_folder()


# --- the address ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True), ("127.0.0.1:6379", True), ("localhost:6379", True), ("::1", True),
        ("[::1]:6379", True), ("10.0.0.1:6379", False), ("auto", False), ("", False),
        ("ray://127.0.0.1:10001", False), ("localhost.example.org:6379", False),
    ],
)  # fmt: skip
def test_which_addresses_this_machine_alone_can_reach(address, loopback):
    assert is_loopback(address) is loopback


def address_file(home: Path, content: str) -> None:
    """What `ray start` leaves in Ray's temporary folder."""
    (home / "ray").mkdir()
    (home / "ray" / "ray_current_cluster").write_text(content)


def closed_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("address", [None, "", "local"])
def test_a_ray_of_our_own_joins_nobody_and_keeps_to_this_machine(
    asked, home, monkeypatch, address, capsys
):
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    address_file(home, f"127.0.0.1:{closed_port()}")
    connect(num_cpus=2)
    [options] = asked
    assert options["address"] == "local"
    assert options["num_cpus"] == 2
    assert options["include_dashboard"] is False
    assert options["keeps_loopback"]
    assert options["_temp_dir"] == str(home / f"fedray-{os.geteuid()}" / "r")
    assert mode(home / ".ray" / "auth_token") == 0o600
    assert os.environ[METRICS] == "0"
    assert ray_constants.ENABLE_RAY_CLUSTER, "left as it was"
    assert capsys.readouterr() == ("", "")


def test_a_ray_of_our_own_starts_without_what_nobody_asks():
    def now() -> list[Any]:
        return [getattr(Node, name) for name in UNUSED] + [utils.get_dashboard_dependency_error]

    before = now()
    with few_processes(3):
        assert not set(before) & set(now())
        assert Node.start_monitor(None) is None
    assert now() == before, "left as it was"


def test_a_server_s_process_starts_with_those_of_the_workers(monkeypatch):
    started: list[Any] = []
    monkeypatch.setattr(
        services, "start_ray_process", lambda command, kind: started.append(command)
    )
    flags = ["--maximum_startup_concurrency=2", "--num_prestart_python_workers=2"]
    before = services.start_ray_process
    with few_processes(3):
        services.start_ray_process(["raylet", *flags, "--port=2"], "raylet")
    assert started == [["raylet", *(flag.replace("2", "3") for flag in flags), "--port=2"]]
    assert services.start_ray_process is before


def test_nobody_reads_of_tokens_who_has_not_asked(capsys, monkeypatch):
    logger = logging.getLogger("ray._private.authentication.authentication_token_setup")
    monkeypatch.setattr(logging.getLogger("ray"), "level", logging.NOTSET)
    with quiet_about_tokens():
        assert not logger.isEnabledFor(logging.WARNING)
        assert logger.isEnabledFor(logging.ERROR)
    assert logging.getLogger("ray").level == logging.NOTSET


def test_other_gpus_are_counted_by_a_pytorch_that_is_built_for_them(monkeypatch):
    monkeypatch.setattr("fedray.runtime.devices.accelerator", lambda: "xpu")
    monkeypatch.setattr("fedray.runtime.devices.count", lambda: 2)
    monkeypatch.setattr(sys, "platform", "linux")
    for version, found in {"2.15.0+cpu": None, "2.15.0+xpu": 2}.items():
        monkeypatch.setattr(cluster, "version", lambda name, version=version: version)
        assert cluster._other_gpus() == found
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(cluster, "version", lambda name: "2.15.0")
    assert cluster._other_gpus() == 2


@pytest.mark.slow
def test_a_cluster_that_answers_is_mentioned_and_not_joined(asked, home, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        address_file(home, address)
        connect(num_cpus=2)
    assert [options["address"] for options in asked] == ["local"]
    said = f"a Ray cluster runs at {address}; set RAY_ADDRESS=auto to use it\n"
    assert capsys.readouterr() == (said, "")


@pytest.mark.parametrize(
    "content", ["", "nonsense", "127.0.0.1:port", "[::1", ":", "\0:1", "127.0.0.1:99999"]
)
def test_a_file_without_an_address_is_passed_over(asked, home, capsys, content):
    address_file(home, content)
    connect()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("address", "kept"), [("127.0.0.1:6379", True), ("10.0.0.1:6379", False)])
def test_a_cluster_s_address_is_taken_as_it_is(asked, home, monkeypatch, address, kept):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("fedray.runtime.cluster.check_address", lambda address: address)
    connect(num_cpus=2)
    [options] = asked
    assert options["keeps_loopback"] is kept
    assert not {"address", "num_cpus", "_temp_dir", "include_dashboard"} & set(options)
    assert list(home.iterdir()) == []


def test_who_opens_ray_to_the_network_on_purpose_may(asked, monkeypatch):
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
    connect()
    assert not asked[0]["keeps_loopback"]


def test_a_ray_that_does_not_keep_to_this_machine_is_said(asked, monkeypatch, capsys):
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.2")
    connect()
    assert capsys.readouterr().err == "warning: this Ray can be reached from the network\n"


LISTEN = """
import ray, sys
from fedray.runtime.cluster import connect

connect(num_cpus=1)
ray.get(ray.remote(lambda: None).remote())
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_real_ray_listens_on_the_loopback_alone(home):
    with ray_folder():
        process = psutil.Popen(
            [sys.executable, "-c", LISTEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert "up\n" in process.stdout
            sockets = [
                (each.name(), found.laddr.ip.removeprefix("::ffff:"))
                for each in (process, *process.children(recursive=True))
                for found in each.net_connections("tcp")
                if found.status == psutil.CONN_LISTEN
            ]
        finally:
            process.communicate("")
    assert {"gcs_server", "raylet"} <= {name for name, _ in sockets}
    assert [found for found in sockets if not is_loopback(found[1])] == []


def test_a_long_temporary_folder_is_replaced(monkeypatch, tmp_path):
    long = tmp_path / ("scratch_local_" * 6)
    long.mkdir()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert private_folder() == Path("/tmp", f"fedray-{os.geteuid()}")


def test_a_long_folder_that_was_chosen_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("é" * 50)))
    with pytest.raises(UserError, match=r"RAY_TMPDIR=.* is too long .* at most \d+ bytes"):
        private_folder()


@pytest.mark.parametrize("spare", [0, 1])
def test_a_path_of_the_longest_length_is_used(monkeypatch, tmp_path, spare):
    name = f"fedray-{os.geteuid()}"
    room = LONGEST_SOCKET - len(SOCKET) - len(f"/{name}") - len("/tmp/") - spare
    chosen = Path("/tmp", "x" * room)
    monkeypatch.setenv("RAY_TMPDIR", str(chosen))
    chosen.mkdir()
    try:
        assert private_folder() == chosen / name
        assert len(f"{chosen / name}{SOCKET}") == LONGEST_SOCKET - spare
    finally:
        shutil.rmtree(chosen)


def test_a_local_ray_outlives_the_thread_that_asked_for_it():
    started = []
    with ThreadPoolExecutor(1) as pool:
        start = partial(_call_in_lasting_thread, lambda: started.append(threading.current_thread()))
        pool.submit(start).result()
    assert started[0].is_alive()
    assert started[0].daemon
    _call_in_lasting_thread(lambda: started.append(threading.current_thread()))
    assert started[1] is threading.main_thread()


def test_an_error_in_the_lasting_thread_reaches_the_caller():
    def fail():
        raise RuntimeError("no")

    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no"):
        pool.submit(_call_in_lasting_thread, fail).result()
