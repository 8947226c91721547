"""Servers that hang, fail, answer nonsense or refuse: the run goes on, and says what is missing."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from commands import upload
from rounds import rounds_in

from benchmarks.faults.proxy import Proxy
from fedray.errors import UserError
from fedray.run import main
from fedray.storage.run_folder import RunFolder
from fedray.tracking import NotTaken, Store, Upload, Uploader, resolve_uri
from fedray.tracking.tracker import Tracker
from tests.tracking.runs import Following, tracked, wait_until

TINY = [
    "fedtsp_digits", "algorithm=fedavg", "model.group=mlp", "data.samples=240", "data.clients=4",
    "rounds=2", "local_epochs=1",
]  # fmt: skip
REASONS = {
    "hang": r"timed out",
    "reset": r"Connection aborted|RemoteDisconnected|Connection reset",
    "500": r"error code 500|too many 500|oops",
    "429": r"error code 429|too many 429",
    "503": r"error code 503|too many 503",
    "401": r"it refuses the user or the password \(401\); set MLFLOW_TRACKING_USERNAME",
    "403": r"this user has no permission \(403\)",
    "html": r"not in a valid JSON format",
    "garbage": r"not in a valid JSON format",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.slow
@pytest.mark.parametrize("fault", REASONS)
def test_what_is_missing_is_said_whatever_the_server_does(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    with (
        Proxy(None, lambda *_: fault) as server,
        Following(folder, server.uri, lambda _: [Upload("k", tracked)]) as following,
    ):
        wait_until(lambda: following.said)
        assert not following.end()
        assert server.faults
    first, last = following.said
    assert re.search(REASONS[fault], first)
    assert "does not have all of 1 run(s)" in last
    assert last.endswith(f"fedray upload '{folder}'")


@pytest.mark.slow
def test_a_server_that_hangs_changes_nothing_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedray.tracking.tracker.CLOSE_SECONDS", 8.0)
    close, runs = Tracker.close, {}

    def close_once_it_hangs(tracker: Tracker, *words: Any) -> None:
        wait_until(lambda: server.faults)
        close(tracker, *words)

    with Proxy(None, lambda *_: "hang") as server:
        monkeypatch.setattr(Tracker, "close", close_once_it_hangs)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        for name, more in (("with", []), ("without", ["--no-track"])):
            out = tmp_path / name
            assert main([*TINY, "--executor", "serial", "--out", str(out), *more]) == 0
            runs[name] = [(each.metrics, each.per_client) for each in RunFolder(out).read().rounds]
    assert len(runs["with"]) == 3
    assert runs["with"] == runs["without"]
    assert "does not have all of 1 run(s)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_cannot_ask_for_an_hour_of_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with (
        Proxy(None, lambda *_: "429") as server,
        pytest.raises(NotTaken, match="429"),  # after an hour, if the server had its way
    ):
        Uploader(server.uri).send([Upload("k", tracked)], print)


# --- secrets -------------------------------------------------------------------------------------

SECRET = "s3cr3t-w0rd"


def assert_nowhere(secret: str, folder: Path, *texts: str) -> None:
    for text in texts:
        assert secret not in text
    for path in folder.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "more"),
    [
        ("http://ada:{}@127.0.0.1:{}", []),
        ("http://ada:{}@127.0.0.1:{}", ["--debug"]),
        ("postgresql+psycopg2://ada:{}@127.0.0.1:{}/mlflow", []),
        ("no-such-scheme://ada:{}@127.0.0.1:{}", []),
    ],
)
def test_a_password_in_the_address_is_nowhere(
    uri: str,
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fedray.tracking.tracker.CLOSE_SECONDS", 8.0)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path))
    out = tmp_path / "run"
    with Proxy(None, lambda *_: "reset") as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(SECRET, server.port))
        assert main([*TINY, "--executor", "serial", "--out", str(out), *more]) == 0
        ran = capfd.readouterr()
        assert upload([str(out)]) == 1
        uploaded = capfd.readouterr()
    assert len(rounds_in(out)) == 3
    assert "does not have all of 1 run(s)" in ran.err
    assert "did not take" in uploaded.err
    assert_nowhere(SECRET, tmp_path, ran.out, ran.err, uploaded.out, uploaded.err)


def test_a_refused_address_does_not_show_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://ada:{SECRET}@host/x")
    assert main([*TINY, "--executor", "serial", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    said = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI=file://ada:***@host/x is a folder" in said
    assert SECRET not in said
    with pytest.raises(UserError) as raised:
        resolve_uri(Path("results"))
    assert SECRET not in str(raised.value)


def test_a_server_that_drips_ends_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte now and then keeps a request from timing out."""
    monkeypatch.setattr("fedray.tracking.uploader.OPEN_SECONDS", 0.2)
    is_over = threading.Event()
    monkeypatch.setattr(Store, "connect", lambda self: is_over.wait())
    out = tmp_path / "out"
    assert main([*TINY, "--executor", "serial", "--out", str(out), "--no-track"]) == 0
    assert upload([str(out), "--uri", "http://127.0.0.1:1"]) == 1
    is_over.set()
    assert "it has not answered completely within 0.2 s" in capsys.readouterr().err
