"""Ray that dies while a command waits for it: one sentence within seconds, and how to go on."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedray.errors import RayDied
from fedray.runtime import liveness, local_ray
from fedray.runtime.liveness import Liveness
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
        monkeypatch.setattr(liveness.ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(liveness.ray, "nodes", lambda: nodes)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield head, raylet


@pytest.mark.slow
@pytest.mark.parametrize(("dead", "said"), [(0, "the head of Ray"), (1, "Ray on this machine")])
def test_a_port_where_nobody_listens_any_more(ports, dead, said):
    alive = Liveness()
    alive.check()
    ports[dead].close()
    with pytest.raises(RayDied, match=f"^{said} .*has died"):
        alive.check()


@pytest.mark.slow
def test_a_head_that_answers_again_has_not_died(ports, monkeypatch):
    alive, answers = Liveness(), iter([False, False, True, True])
    monkeypatch.setattr(liveness, "answers", lambda address: next(answers))
    alive.check()


@pytest.mark.slow
def test_nothing_is_checked_more_than_once_a_second(ports, monkeypatch):
    alive = Liveness()
    monkeypatch.setattr(Liveness, "check", lambda self: pytest.fail("checked"))
    alive.look()


@pytest.mark.slow
def test_a_stopped_process_is_said_once(ports, monkeypatch, caplog):
    alive = Liveness()
    alive._checked = alive._arrived = -1e9
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            pass
        with caplog.at_level(logging.WARNING):
            alive.look()
            alive._checked = -1e9
            alive.look()
        process.kill()
    (line,) = caplog.messages
    assert line.startswith(f"process {process.pid} (")
    assert line.endswith(f"go on with kill -CONT {process.pid}")


@pytest.mark.slow
def test_a_stopped_process_of_a_joined_cluster_is_said(ports, tmp_path, caplog):
    alive = Liveness()
    raylet, pids = tmp_path / "raylet", tmp_path / "pids"
    raylet.symlink_to(sys.executable)
    program = (
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {child.pid} ')\n"
        "child.wait()"
    )
    words = [str(raylet), "-c", program, str(pids), f"--gcs-address={alive._head}"]
    subprocess.run(["sh", "-c", '"$@" & exit', "-", *words], check=True)
    while not pids.exists() or not pids.read_text().endswith(" "):
        time.sleep(0.01)
    parent, child = (psutil.Process(int(pid)) for pid in pids.read_text().split())
    try:
        assert child not in psutil.Process().children(recursive=True)
        child.suspend()
        while child.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        alive._checked = alive._arrived = -1e9
        with caplog.at_level(logging.WARNING):
            alive.look()
    finally:
        child.kill()
        parent.wait(60)
    said = [record.getMessage() for record in caplog.records if record.name == liveness.log.name]
    assert [line.split(" (")[0] for line in said] == [f"process {child.pid}"]


def test_notices_of_ray_are_one_line_and_none_repeats_that_the_raylet_died(
    caplog, monkeypatch, capsys
):
    monkeypatch.setattr(local_ray.worker, "print_to_stdstream", None)
    local_ray.shorten_notices()
    dump = "Raylet is terminated. Termination is unexpected.\n    [state-dump]\n    [state-dump]"
    dead = "The node with node id: 1 has been marked dead because\n (1) raylet crashes"
    with caplog.at_level(logging.WARNING):
        notices = {"lines": [dump, dead], "pid": "raylet"}
        local_ray.worker.print_to_stdstream(notices, ignore_prefix=False)
        printed = {"lines": ["mine"], "pid": 7, "ip": "", "job": "", "is_err": False}
        local_ray.worker.print_to_stdstream(printed, ignore_prefix=True)
    assert capsys.readouterr().out.strip() == "mine"
    assert caplog.messages == ["Ray: The node with node id: 1 has been marked dead because"]


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
    command = ["fedray.run", "fedavg_digits", *WORDS, "rounds=400"]
    out = tmp_path / "killed"
    code, errors = killed(name, [*command, "--out", str(out)], "round 2/", tmp_path)
    line = errors.splitlines()[-1]
    assert code == 1, errors
    assert re.fullmatch(rf"failed: .*has died.*; continue with --resume {out}", line)
    assert "state-dump" not in errors
    assert RunFolder(out).read().done < 400
    again = [sys.executable, "-m", "fedray.run", "--no-track", "--executor", "serial"]
    subprocess.run([*again, "--resume", str(out)], check=True)
    subprocess.run([*again, *command[1:], "--out", str(tmp_path / "whole")], check=True)
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
    line = errors.splitlines()[-1]
    assert code == 1, errors
    assert re.fullmatch(r"failed: the head of Ray .*; go on with: python -m .* --resume .*", line)
