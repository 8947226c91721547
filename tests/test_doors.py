"""The listening sockets of a local Ray, what they answer, and who may read its files."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.doors import Door, doors, free_port, running, settled

pytestmark = pytest.mark.timeout(900)  # a busy machine decides nothing

COUNTERS = {"_private/monitor.py", "v2/monitor.py", "dashboard/dashboard.py"}
"""Where Ray's own counters can be read without a token, as clusters/README.md says; of a head."""


@dataclass(frozen=True)
class Seen:
    """What was found while a command ran.

    Attributes:
        command: run, sweep or head.
        doors: its listening sockets.
        answers: what each says to who has no token.
        token: the mode of the token's file.
        folder: the mode of the folder that Ray's sessions lie in.
    """

    command: str
    doors: list[Door]
    answers: dict[Door, str]
    token: int
    folder: int


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(
    scope="module", params=["run", "head", pytest.param("sweep", marks=pytest.mark.long)]
)
def seen(request: pytest.FixtureRequest) -> Seen:
    """Of a command, started once in a home of its own."""
    before, home = os.umask(0o022), Path(tempfile.mkdtemp(prefix="doors", dir="/tmp"))
    try:
        with running(request.param, home) as pid:
            listed = settled(pid)
            answers = {door: door.answer() for door in listed}
            [sockets] = home.glob("*/r/session_2*/sockets")
        token, folder = home / ".ray" / "auth_token", sockets.parents[2]
        return Seen(request.param, listed, answers, mode(token), mode(folder))
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.umask(before)


@pytest.mark.ray
@pytest.mark.slow
def test_ray_listens_on_the_loopback_address_alone(seen):
    names = {door.process for door in seen.doors}
    assert {"gcs_server", "raylet", "ray::RuntimeEnvAgent"} <= names
    if seen.command == "head":
        assert "ray::DashboardAgent" in names
    else:
        assert {f"fedray.{seen.command}", "ray::Worker"} <= names
        assert not {"ray::DashboardAgent", *COUNTERS} & names
    assert [door for door in seen.doors if not door.on_loopback] == []


@pytest.mark.ray
@pytest.mark.slow
def test_without_the_token_ray_answers_nothing_but_its_counters(seen):
    refused = ("HTTP 401", "gRPC UNAUTHENTICATED")
    assert any(answer.startswith(refused) for answer in seen.answers.values())
    for door, answer in seen.answers.items():
        assert answer.startswith(refused) or door.process in COUNTERS, (door, answer)


@pytest.mark.ray
@pytest.mark.slow
def test_nobody_else_reads_the_token_or_enters_the_folder(seen):
    assert seen.token == 0o600
    assert seen.folder == 0o700


@pytest.mark.parametrize(
    ("host", "family", "reachable"),
    [
        ("127.0.0.1", socket.AF_INET, False), ("::1", socket.AF_INET6, False),
        ("::ffff:127.0.0.1", socket.AF_INET6, False), ("0.0.0.0", socket.AF_INET, True),
        ("::", socket.AF_INET6, True),
    ],
)  # fmt: skip
def test_sockets_are_seen_in_processes_that_a_process_has_started(host, family, reachable):
    listen = (
        "import socket, sys; s = socket.socket(int(sys.argv[2])); s.bind((sys.argv[1], 0));"
        "s.listen(); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    process = subprocess.Popen(
        [sys.executable, "-c", start, listen, host, str(int(family))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        if not port:
            pytest.skip(f"this machine has no {host}")
        [door] = doors(process.pid)
        assert (door.host, door.port) == (host, int(port))
        assert door.on_loopback is not reachable
    finally:
        process.communicate("")


def test_free_port_has_two_free_neighbours():
    port = free_port()
    for each in range(port, port + 3):
        socket.create_server(("127.0.0.1", each)).close()
