"""The listening sockets of a local Ray, what they answer, and who may read its files."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.doors import KINDS, Door, doors, free_port, running, settled

METRICS = {"_private/monitor.py", "v2/monitor.py", "dashboard/dashboard.py"}
"""What Ray's own counters can be read from without a token: clusters/README.md says so."""


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, tuple[list[Door], dict[Door, str], Path]]]:
    """Of each command, started side by side: its sockets, what they answer, and its home."""
    folders = {kind: Path(tempfile.mkdtemp(prefix="doors", dir="/tmp")) for kind in KINDS}
    before = os.umask(0o022)
    try:
        with ExitStack() as stack:
            pids = {
                kind: stack.enter_context(running(kind, folder, RAY_AUTH_MODE="token"))
                for kind, folder in folders.items()
            }
            listed = {kind: settled(pid) for kind, pid in pids.items()}
            answers = {kind: {door: door.answer() for door in listed[kind]} for kind in KINDS}
        yield {kind: (listed[kind], answers[kind], folders[kind]) for kind in KINDS}
    finally:
        os.umask(before)
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ray_listens_on_the_loopback_address_alone(found, kind):
    listed = found[kind][0]
    assert {"gcs_server", "raylet", "ray::DashboardAgent"} <= {door.process for door in listed}
    assert [door for door in listed if not door.on_loopback] == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_the_token_ray_answers_nothing_but_its_counters(found, kind):
    refused = ("HTTP 401", "gRPC UNAUTHENTICATED")
    answers = found[kind][1]
    assert any(answer.startswith(refused) for answer in answers.values())
    for door, answer in answers.items():
        assert answer.startswith(refused) or door.process in METRICS, (door, answer)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_else_reads_the_token_or_enters_the_folder(found, kind):
    home = found[kind][2]
    folder = home / "head" if kind == "head" else home / f"fedray-{os.geteuid()}"
    assert stat.S_IMODE((home / ".ray" / "auth_token").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.glob("r/session_*/logs"))


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
