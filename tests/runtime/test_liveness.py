"""Ray that dies while a command waits for it: one sentence within seconds, and how to go on."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedray.base.errors import RayDied
from fedray.runtime import cluster
from fedray.runtime.cluster import Liveness
from fedray.storage.run_folder import RunFolder

WORDS = ["data.samples=240", "data.clients=4", "local_epochs=1", "workers=1"]


@pytest.fixture
def ports(monkeypatch):
    """Listening sockets in place of the head and of the node's raylet; nothing is waited for."""
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        socket.create_server(("127.0.0.1", 0)) as raylet,
    ):
        context = SimpleNamespace(
            get_node_id=lambda: "here", gcs_address=f"127.0.0.1:{head.getsockname()[1]}"
        )
        nodes = [
            {"NodeID": "there", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1},
            {
                "NodeID": "here",
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": raylet.getsockname()[1],
            },
        ]
        monkeypatch.setattr(cluster.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(cluster.ray, "nodes", lambda: nodes)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield head, raylet


@pytest.mark.slow
@pytest.mark.parametrize(("dead", "said"), [(0, "the head of Ray"), (1, "Ray on this machine")])
def test_a_port_where_nobody_listens_any_more(ports, dead, said, monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.0)
    alive = Liveness()
    alive.check()
    ports[dead].close()
    with pytest.raises(RayDied, match=f"^{said} .*has died"):
        alive.check()


@pytest.mark.slow
def test_a_head_that_answers_again_has_not_died(ports, monkeypatch):
    alive, answers = Liveness(), iter([False, False, True, True])
    monkeypatch.setattr(cluster, "answers", lambda address: next(answers))
    assert alive.cause() is None


def killed(name: str, command: list[str], sign: str, results: Path) -> tuple[int, str]:
    """Kill a process of a command's Ray once a line begins with `sign`; return code and errors."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--no-track"],
        env={**os.environ, "FEDRAY_RESULTS": str(results)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(sign):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    next(child for child in children if child.name() == name).kill()
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", pytest.param("gcs_server", marks=pytest.mark.long)])
def test_a_run_whose_ray_is_killed_says_so_and_resumes_equal(name, tmp_path):
    command = ["fedray.run", "fedavg_digits", *WORDS, "rounds=400", "--executor", "ray"]
    out = tmp_path / "killed"
    code, errors = killed(name, [*command, "--out", str(out)], "round 2/", tmp_path)
    line = errors.splitlines()[-1]
    assert code == 1, errors
    assert re.fullmatch(rf"failed: .*has died.*; continue with --resume {out}", line)
    assert RunFolder(out).read().done < 400
    again = [sys.executable, "-m", "fedray.run", "--no-track"]
    subprocess.run([*again, "--resume", str(out)], check=True)
    subprocess.run([*again, *command[1:-2], "--out", str(tmp_path / "whole")], check=True)
    numbers = [
        [(each.round, each.metrics, each.per_client) for each in RunFolder(folder).read().rounds]
        for folder in (out, tmp_path / "whole")
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_whose_head_is_killed_says_how_to_go_on(tmp_path):
    command = ["fedray.sweep", "fedproto_lambda", *WORDS, "rounds=400"]
    code, errors = killed("gcs_server", command, "running ", tmp_path)
    assert code == 1, errors
    said = r"^failed: the head of Ray .*; go on with: python -m fedray.sweep .*$"
    assert re.search(said, errors, re.MULTILINE), errors  # Ray's own lines may follow
