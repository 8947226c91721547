"""Servers that hang, fail, answer nonsense or refuse: the run goes on, and says what is missing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from benchmarks.faults.proxy import Proxy
from fedray.cli.run import main
from fedray.records import RunFolder
from fedray.tracking import MlflowTracker

TINY = [
    "fedtsp_digits", "algorithm=fedavg", "model.group=mlp", "data.samples=240", "data.clients=4",
    "rounds=2", "local_epochs=1",
]  # fmt: skip
REASONS = {
    "hang": r"Read timed out|not ready",
    "reset": r"Connection aborted|RemoteDisconnected|Connection reset",
    "500": r"error code 500|too many 500|oops",
    "429": r"error code 429|too many 429",
    "503": r"error code 503|too many 503",
    "401": r"it refuses the user or the password \(401\); set MLFLOW_TRACKING_USERNAME",
    "403": r"this user may not do that \(403\)",
    "html": r"not in a valid JSON format",
    "garbage": r"not in a valid JSON format",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.parametrize("fault", REASONS)
def test_a_run_ends_well_whatever_the_server_does(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a run"
    with Proxy(None, lambda *_: fault) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        began = time.monotonic()
        assert main([*TINY, "--executor", "serial", "--out", str(out)]) == 0
        assert time.monotonic() - began < 60
        assert server.faults
    done = RunFolder(out).read()
    assert [each.round for each in done.rounds] == [0, 1, 2]
    lines = [line for line in capsys.readouterr().err.splitlines() if "tracking:" in line]
    assert re.search(REASONS[fault], lines[-1]), lines
    assert "is missing 3 round(s) and the end of 1 run(s)" in lines[-1]
    assert lines[-1].endswith(f"python -m fedray.tracking upload '{out}'")
    assert len(lines) <= 2


def test_numbers_are_the_same_with_and_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = []
    with Proxy(None, lambda *_: "500") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        for name, more in (("with", []), ("without", ["--no-track"])):
            out = tmp_path / name
            assert main([*TINY, "--executor", "serial", "--out", str(out), *more]) == 0
            accuracies.append([each.per_client for each in RunFolder(out).read().rounds])
    assert accuracies[0] == accuracies[1]


def test_a_server_cannot_ask_for_an_hour_of_patience(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with Proxy(None, lambda *_: "429") as server:
        tracker = MlflowTracker(server.uri, "digits")
        tracker.start("k", "n", params={}, tags={})
        deadline = time.monotonic() + 60
        while tracker.failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        tracker.close()
    assert "429" in str(tracker.failure)


# --- secrets -------------------------------------------------------------------------------------

SECRET = "s3cr3t-w0rd"


def assert_nowhere(secret: str, folder: Path, *texts: str) -> None:
    for text in texts:
        assert secret not in text
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "uri",
    [
        "http://ada:{}@127.0.0.1:{}",
        "postgresql+psycopg2://ada:{}@127.0.0.1:{}/mlflow",
        "no-such-scheme://ada:{}@127.0.0.1:{}",
        "ada:{}@127.0.0.1:{}",
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_a_password_in_the_address_is_nowhere(
    uri: str,
    debug: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fedray.tracking.live.CLOSE_SECONDS", 3.0)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path))
    with Proxy(None, lambda *_: "reset") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(SECRET, server.port))
        code = main(
            [*TINY, "--executor", "serial", "--out", str(tmp_path / "run")] + ["--debug"] * debug
        )
    printed = capfd.readouterr()
    if "://" in uri:
        assert code == 0
        assert "ada:***@" in printed.err
        assert len(json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]) == 3
    else:
        assert code == 2
        assert "is a folder" in printed.err
    assert_nowhere(SECRET, tmp_path, printed.out, printed.err)
