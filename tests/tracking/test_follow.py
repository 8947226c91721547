"""A run whose folder a child process sends to MLflow: killed, stopped, and with a silent server."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import run as run_command

from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.tracking import follow
from fedray.tracking.follow import tracking
from tests.tracking.runs import Held, make_run, wait_until, write_run

TINY = [
    "fedavg_digits", "model.group=mlp", "data.samples=240", "data.clients=4", "rounds=2",
    "local_epochs=1", "--executor", "serial",
]  # fmt: skip
SECRET = "s3cr3t-w0rd"


def test_a_folder_is_followed_to_its_end(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, held, result = tmp_path / "run", Held(uri), make_run(3)
    folder.mkdir()
    writer = RunWriter(RunFolder(folder), result.info, {})
    statuses, said = [], list[str]()
    monkeypatch.setattr(follow, "EVERY_SECONDS", 0.01)

    class Run(io.StringIO):
        def read(self, *_: Any) -> str:
            """Return once the run has ended."""
            for done in result.rounds:
                writer.append(done, result.costs)
                wait_until(lambda: held.runs("digits"))
                statuses.append(held.run().info.status)
            writer.close()
            return ""

    monkeypatch.setattr(sys, "stdin", Run())
    assert follow.follow_folder(folder, uri, said.append)
    assert statuses == ["RUNNING"] * 4
    assert held.run().info.status == "FINISHED"
    held.assert_every_metric_once_per_round(held.run(), range(4))
    assert "then open http://127.0.0.1:5000/#/experiments/1/runs?" in capsys.readouterr().out
    assert said == []


@pytest.mark.parametrize("text", ["", "{"])
def test_a_failure_is_said_at_once_and_at_the_end_with_the_command(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    folder, said = write_run(tmp_path / "a run", make_run(1)), list[str]()
    (folder / "run.json").write_text(text)
    monkeypatch.setattr(follow, "EVERY_SECONDS", 0.01)

    class Run(io.StringIO):
        def read(self, *_: Any) -> str:
            wait_until(lambda: said)
            return ""

    monkeypatch.setattr(sys, "stdin", Run())
    assert not follow.follow_folder(folder, uri, said.append)
    assert len(said) == 2
    for line in said:
        assert "run.json" in line
        assert line.endswith(f"fedray upload '{folder}'")


FOLLOWS = """
import sys, time
from pathlib import Path
from fedray.tracking import follow

child = follow._child(Path(sys.argv[2]), sys.argv[1])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_is_killed_in_mlflow(tmp_path: Path, uri: str) -> None:
    folder, held = write_run(tmp_path / "run", make_run(3, of=5)), Held(uri)
    command = [sys.executable, "-c", FOLLOWS, uri, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        wait_until(lambda: held.runs("digits"))
        os.kill(child, signal.SIGTERM)  # `ray job stop` signals all processes of a job
        time.sleep(0.2)
        assert held.run().info.status == "RUNNING"
        run.kill()
    wait_until(lambda: held.run().info.status == "KILLED")
    held.assert_every_metric_once_per_round(held.run(), range(4))


@pytest.mark.slow
def test_a_silent_server_holds_up_the_end_for_a_limited_time(
    tmp_path: Path,
    empty_database: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "CLOSE_SECONDS", 0.5)
    out = tmp_path / "run"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        uri = f"http://ada:{SECRET}@127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        with tracking(write_run(out, make_run(1))) as start:
            start()
            listener.accept()
    printed = capfd.readouterr()
    assert printed.out.splitlines()[-1].startswith("compare: http://ada:***@127.0.0.1:")
    assert f"another process writes the rest to MLflow; if it is ended: fedray upload {out}" in (
        printed.err
    )
    assert SECRET not in printed.out + printed.err


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "postgresql+psycopg2", "no-such-scheme"])
def test_a_store_that_is_gone_changes_nothing_and_its_password_is_nowhere(
    scheme: str,
    tmp_path: Path,
    empty_database: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://ada:{SECRET}@127.0.0.1:1/mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert run_command([*TINY, "--out", str(out)]) == 0
    printed = capfd.readouterr()
    assert len(RunFolder(out).read().rounds) == 3
    assert printed.out.index("results: ") < printed.out.index("writing the rest to MLflow")
    assert f"{scheme}://ada:***@127.0.0.1:1/mlflow lacks a part (" in printed.err
    assert printed.err.endswith(f"to upload it: fedray upload {out}\n")
    assert SECRET not in printed.out + printed.err
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
