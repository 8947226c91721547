"""From a folder to MLflow: `sync`, a folder that is followed, and `fedray upload`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import upload as upload_command

from fedray.cli.upload import upload
from fedray.config import flatten
from fedray.errors import UserError
from fedray.storage.claim import FolderClaim
from fedray.storage.run_folder import RunFile, RunFolder
from fedray.storage.writer import RunWriter
from fedray.tracking import (
    Store,
    TrackedRun,
    Tracker,
    Upload,
    Uploader,
    as_params,
    run_key,
    tracked_run,
    uri_of,
)
from tests.tracking.runs import (
    STARTED,
    Following,
    Held,
    make_round,
    make_run,
    tracked,
    wait_until,
    write_run,
)

Serve = Callable[[int], "subprocess.Popen[bytes]"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


# --- sync ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_all_there(tmp_path: Path, uri: str) -> None:
    result = make_run(3)
    folder = write_run(tmp_path / "run", result)
    store = Store(uri, "digits")
    added = [
        store.sync(tracked_run(folder, status)) for status in ("RUNNING", "FINISHED", "FINISHED")
    ]
    assert [(each.rounds, each.files) for each in added] == [(4, 0), (0, 5), (0, 0)]
    held = Held(uri)
    run = held.run()
    assert (run.info.run_name, run.info.status) == ("fedtsp digits seed 0", "FINISHED")
    assert run.data.params == as_params(flatten(result.info.config))
    assert run.data.tags["fedray.key"] == run_key(folder, result.info.identity)
    assert run.data.tags["fedray.folder"] == "run"
    assert run.data.tags["partition_sha256"] == "f" * 64
    assert run.info.start_time == int(STARTED.timestamp() * 1000)
    assert run.info.end_time - run.info.start_time == 8000
    accuracy = [(r, make_round(r).metrics["local_accuracy"]) for r in range(4)]
    assert held.history(run, "accuracy/local_accuracy") == accuracy
    assert held.history(run, "traffic/total_up_bytes") == [(0, 0), (1, 100), (2, 300), (3, 600)]
    held.assert_every_metric_once_per_round(run, range(4))
    names = ("per_client.json", "run.json", "rounds.jsonl")
    assert held.artifacts(run) == set(names)
    assert json.loads(held.artifact(run, "per_client.json"))["per_client"]["rounds"] == [0, 1, 2, 3]
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", f"{'d' * 12}-{'f' * 12}")
    assert json.loads(given.dataset.profile)["partition_sha256"] == "f" * 64
    assert "3 of 3 rounds" in run.data.tags["mlflow.note.content"]


def test_the_status_follows_from_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", make_run(2, of=4))
    claim = FolderClaim(RunFolder(folder))
    claim.acquire()
    try:
        assert tracked_run(folder).status == "RUNNING"
    finally:
        claim.release()
    assert tracked_run(folder).status == "KILLED"
    (folder / "error.txt").write_text("an error")
    assert tracked_run(folder).status == "FAILED"
    assert tracked_run(write_run(tmp_path / "run", make_run(4))).status == "FINISHED"


def test_a_run_without_a_result_is_described_by_its_plan(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", "FAILED", planned=make_run(1).info)
    assert (run.rounds, run.name, run.note) == ((), "fedtsp digits seed 0", "")
    with pytest.raises(UserError, match=r"run.json"):
        tracked_run(tmp_path / "run", "FAILED")


# --- a folder that is followed --------------------------------------------------------------------


def test_a_folder_is_followed(tmp_path: Path, uri: str) -> None:
    folder, held = tmp_path / "run", Held(uri)
    result = make_run(5)
    with Following(folder, uri) as following:
        folder.mkdir()
        (folder / "run.json").write_text("rounds: 5\n")
        writer = RunWriter(RunFolder(folder), RunFile(**vars(result.info)))
        for done in result.rounds:
            writer.append(done, result.costs)
        wait_until(lambda: held.runs("digits"))
        assert held.run().info.status == "RUNNING"
        writer.close()
        assert following.end("FINISHED")
    assert held.run().info.status == "FINISHED"
    held.assert_every_metric_once_per_round(held.run(), range(6))
    (view,) = following.said
    assert view.startswith("view them: mlflow ui --backend-store-uri ")
    assert "viewStateShareKey=accuracy" in view


@pytest.mark.parametrize("word", ["KILLED", "FAILED", ""])
def test_the_last_state_has_the_status_that_the_run_ended_in(
    word: str, tmp_path: Path, uri: str
) -> None:
    folder = write_run(tmp_path / "run", make_run(2, of=5))
    with Following(folder, uri) as following:
        assert following.end(word)
    assert Held(uri).run().info.status == (word or "KILLED")  # nobody holds the folder


@pytest.mark.parametrize("word", ["KILLED", "FAILED"])
def test_a_run_that_has_not_begun_is_not_logged(word: str, tmp_path: Path, uri: str) -> None:
    with Following(tmp_path / "run", uri) as following:
        assert following.end(word)
    assert Held(uri).runs("digits") == []
    assert following.said == []


def sources(*runs: TrackedRun) -> list[Upload]:
    return [Upload(run.key, lambda run=run: run, state=run) for run in runs]


def test_many_runs_at_once_in_one_process(uri: str) -> None:
    uploader, keys = Uploader(uri), [f"trial {i}" for i in range(8)]
    for r in range(3):
        rounds = [make_round(i) for i in range(r + 1)]
        status = "FINISHED" if r == 2 else "RUNNING"
        uploader.send(sources(*(tracked(key, rounds, status=status) for key in keys)), print)
    held = Held(uri)
    runs = held.runs("digits")
    assert sorted(run.info.run_name for run in runs) == sorted(keys)
    for run in runs:
        assert run.info.status == "FINISHED"
        assert held.history(run, "time/seconds") == [(r, 2.0) for r in range(3)]


def test_it_works_for_a_small_share_of_the_time(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [], Store.sync

    def sync(self: Store, run: TrackedRun) -> Any:
        calls.append(time.monotonic())
        time.sleep(0.1)
        return real(self, run)

    monkeypatch.setattr(Store, "sync", sync)

    def find(status: Any) -> list[Upload]:  # each time there is something new
        return [Upload("k", tracked, state=time.monotonic())]

    with Following(tmp_path, uri, find) as following:
        wait_until(lambda: len(calls) == 2)
        time.sleep(1.0)
        assert following.end("FINISHED")
    assert len(calls) == 3  # the one that connects, the next one, and the one at the end


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, uri: str) -> None:
    reads: list[str] = []
    uploader, file = Uploader(uri), tmp_path / "rounds.jsonl"

    def read() -> TrackedRun:
        reads.append("")
        return tracked()

    for text in ("a", "a", "ab", "ab"):
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        uploader.send([Upload("k", read, [file])], print)
    uploader.send([Upload("k", read, [file], "ended")], print)
    assert len(reads) == 3


def test_one_refused_run_does_not_stop_the_others(uri: str) -> None:
    uploader, held = Uploader(uri), Held(uri)
    uploader.send(sources(tracked("a")), print)
    held.client.delete_run(held.run().info.run_id)
    new = [make_round(0)]
    uploader.send(sources(tracked("a", new), tracked("b", new, status="FINISHED")), print)
    runs = {run.info.run_name: run for run in held.runs("digits")}
    assert runs["b"].info.status == "FINISHED"
    held.assert_every_metric_once_per_round(runs["b"], range(1))
    assert [*uploader.refused] == ["a"]


def damage_result(folder: Path) -> None:
    (folder / "run.json").write_text("{")


def damage_rounds(folder: Path) -> None:
    path = folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('"metrics"', '"metrix"', 1))


def damage_metadata(folder: Path) -> None:
    (folder / "tracking.json").write_text("[]")


@pytest.mark.parametrize("damage", [damage_result, damage_metadata, shutil.rmtree])
def test_one_unreadable_folder_stops_nothing_else_and_is_to_blame(
    damage: Callable[[Path], None], tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / "all" / name, make_run(1)) for name in ("r0", "r1", "r2")]
    damage(folders[0])

    def find(status: Any) -> list[Upload]:
        return [Upload(str(f), partial(tracked_run, f, "FINISHED")) for f in folders]

    with Following(tmp_path / "all", uri, find) as following:
        wait_until(lambda: len(Held(uri).runs("digits")) == 2)  # before the end
        assert not following.end()
    said = [line for line in following.said if not line.startswith("view them")]
    assert "MLflow does not have a run (" in said[0]
    assert str(folders[0]) in said[0]
    assert "does not have all of 1 run(s) (" in said[1]
    assert len(said) == 2
    assert [run.info.status for run in Held(uri).runs("digits")] == ["FINISHED"] * 2
    if folders[0].is_dir():  # otherwise there is nothing to upload
        assert upload_command([str(tmp_path / "all"), "--uri", uri]) == 2
        printed = capsys.readouterr()
        assert str(folders[0]) in printed.err
        assert printed.out.count("nothing was missing") == 2


def test_a_folder_that_is_mended_is_sent(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "run", make_run(1))
    damage_result(folder)
    with Following(folder, uri) as following:
        wait_until(lambda: following.said)
        write_run(folder, make_run(1))
        assert following.end("FINISHED")
    assert Held(uri).run().info.status == "FINISHED"
    assert "run.json" in following.said[0]
    assert following.said[-1] == "MLflow is complete now"


def test_an_error_of_fedray_is_not_blamed_on_mlflow(tmp_path: Path, uri: str) -> None:
    runs = [
        tracked("a", tags={"number": object()}), tracked("b", metrics=1, status="FINISHED"),
        tracked("c", status="FINISHED"),
    ]  # fmt: skip
    bad = Upload("d", lambda: {}["nothing"])  # type: ignore[arg-type]
    with Following(tmp_path, uri, lambda _: [*sources(*runs), bad]) as following:
        assert not following.end()
    statuses = {run.info.run_name: run.info.status for run in Held(uri).runs("digits")}
    assert statuses["c"] == "FINISHED"
    said = "\n".join(following.said)
    assert "KeyError: 'nothing' (an error of fedray)" in said
    assert "is not up to date" not in said


# --- the store in which a run began ---------------------------------------------------------------


def test_a_run_goes_on_in_the_store_in_which_it_began(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", make_run(1, of=2))
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert uri_of(folder) == (uri, "")
    with Following(folder, uri) as following:
        wait_until(lambda: following.said)
        following.end("KILLED")

    monkeypatch.delenv("MLFLOW_TRACKING_URI")  # as in a job without --runtime-env
    write_run(folder, make_run(2))
    found, notice = uri_of(folder)
    assert found == uri
    assert "MLFLOW_TRACKING_URI is not set; " in notice

    other = f"sqlite:///{tmp_path}/other.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    assert uri_of(folder)[0] == other
    assert f"began in MLflow at {uri} and goes on at {other}" in uri_of(folder)[1]


@pytest.mark.parametrize(
    ("began", "goes_on", "says"),
    [
        ("http://host:5000", "began", "is not set; "),
        ("http://ada:***@host:5000", "results", "stays RUNNING"),
        ("sqlite:////moved/away/mlflow.db", "results", ""),
        (None, "results", ""),
    ],
)
def test_an_address_that_was_lost_is_named(
    began: str | None,
    goes_on: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path))
    (tmp_path / "tracking.json").write_text(json.dumps({"key": "k", "uri": began}))
    uri, notice = uri_of(tmp_path)
    assert uri == (began if goes_on == "began" else f"sqlite:///{tmp_path}/mlflow.db")
    assert says in notice
    assert bool(notice) is bool(says)


def test_a_server_that_comes_back_gets_everything(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Store.sync

    def fail(*_: object) -> None:
        raise OSError("away")

    monkeypatch.setattr(Store, "sync", fail)
    runs = tracked("p", status="FINISHED"), tracked("a", parent="p", status="FINISHED")
    with Following(tmp_path, uri, lambda _: sources(*runs)) as following:
        wait_until(lambda: following.said)
        monkeypatch.setattr(Store, "sync", sync)
        assert following.end()
    found = {run.info.run_name: run for run in Held(uri).runs("digits")}
    assert found["a"].data.tags["mlflow.parentRunId"] == found["p"].info.run_id
    assert found["p"].info.status == "FINISHED"
    first, *_, last = following.said
    assert "OSError: away" in first
    assert last == "MLflow is complete now"


# --- the child -----------------------------------------------------------------------------------


def child_of(tracker: Tracker) -> subprocess.Popen[str]:
    assert tracker._process is not None
    return tracker._process


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_tracker_that_has_not_started_has_nothing_to_send(tmp_path: Path) -> None:
    tracker = Tracker("http://127.0.0.1:9", tmp_path)
    tracker.close("FAILED")
    assert tracker._process is None


@pytest.mark.slow
def test_the_child_survives_the_signal_that_stops_a_job_and_a_dead_child_is_replaced(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, held = write_run(tmp_path / "run", make_run(2, of=4)), Held(uri)
    tracker = Tracker(uri, folder)
    tracker.start()
    wait_until(lambda: held.runs("digits"))
    child = child_of(tracker)
    child.terminate()  # `ray job stop` signals all processes of a job
    time.sleep(0.2)
    assert child.poll() is None
    child.kill()
    child.wait()
    write_run(folder, make_run(4))
    tracker.close("FINISHED")
    assert held.run().info.status == "FINISHED"
    held.assert_every_metric_once_per_round(held.run(), range(5))
    assert "viewStateShareKey=" in tracker.hint
    assert "tracking:" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedray.tracking.tracker.QUIET_SECONDS", 0)  # the child waits only 0.5 s
    folder = write_run(tmp_path / "run", make_run(1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        silent = Tracker(f"http://127.0.0.1:{listener.getsockname()[1]}", folder)
        silent.start()
        listener.accept()
        silent.close("FINISHED", 0.5)
    printed = capsys.readouterr()
    assert "writing the rest to MLflow ..." in printed.out
    assert "does not have all of 1 run(s) (not ready after 0.5 s)" in printed.err
    assert printed.err.count("tracking:") == 1


FOLLOWS = """
import sys, time
from pathlib import Path
from fedray.tracking import Tracker

tracker = Tracker(sys.argv[1], Path(sys.argv[2]))
tracker.start()
print(tracker._process.pid, flush=True)
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
        run.kill()
    wait_until(lambda: not is_there(child))
    assert held.run().info.status == "KILLED"
    held.assert_every_metric_once_per_round(held.run(), range(4))


# --- upload --------------------------------------------------------------------------------------


def test_upload_adds_what_is_missing_and_nothing_twice(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "runs" / "one", make_run(2, of=5))
    Store(uri, "digits").sync(tracked_run(folder, "RUNNING"))
    write_run(folder, make_run(5))
    (done,) = upload([tmp_path / "runs"], uri)
    assert str(done) == f"{folder}: added 3 rounds, 0 params, 3 files"
    held = Held(uri)
    assert held.run().info.status == "FINISHED"
    held.assert_every_metric_once_per_round(held.run(), range(6))
    (done,) = upload([tmp_path / "runs", folder], uri)
    assert str(done) == f"{folder}: nothing was missing"
    held.assert_every_metric_once_per_round(held.run(), range(6))


def test_upload_leaves_a_run_open_whose_process_goes_on(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "half", make_run(2, of=4))
    claim = FolderClaim(RunFolder(folder))
    claim.acquire()
    try:
        (done,) = upload([folder], uri)
        assert [(each.rounds, each.files) for each in done.added] == [(3, 0)]
        assert Held(uri).run().info.status == "RUNNING"
    finally:
        claim.release()
    upload([folder], uri)
    assert Held(uri).run().info.status == "KILLED"


def test_upload_of_unknown_runs(tmp_path: Path, uri: str) -> None:
    write_run(tmp_path / "runs" / "whole", make_run(2))
    half = write_run(tmp_path / "runs" / "half", make_run(2, of=4))
    run_key(half, make_run(2, of=4).info.identity, experiment="mine", name="my run")
    done = upload([tmp_path / "runs"], uri)
    assert [(each.folder.name, each.added[0].rounds) for each in done] == [
        ("half", 3),
        ("whole", 3),
    ]
    held = Held(uri)
    whole, cut = held.run("digits"), held.run("mine")
    assert (whole.data.tags["fedray.folder"], whole.info.status) == ("whole", "FINISHED")
    assert (cut.data.tags["fedray.folder"], cut.info.status) == ("half", "KILLED")
    assert (whole.info.run_name, cut.info.run_name) == ("fedtsp digits seed 0", "my run")


@pytest.mark.parametrize("bad", ["damaged", "empty"])
def test_good_folders_behind_a_bad_one_are_uploaded(
    bad: str, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "bad"
    if bad == "damaged":
        damage_rounds(write_run(first, make_run(1)))
    elif bad == "empty":
        first.mkdir()
    good = [write_run(tmp_path / f"r{n}", make_run(1, seed=n)) for n in range(2)]
    assert upload_command([str(first), *map(str, good), "--uri", uri]) == 2
    printed = capsys.readouterr()
    assert printed.out.count(": added 2 rounds") == 2
    assert printed.err.count(str(first)) == 1
    assert printed.err.endswith("all other runs are uploaded\n")
    assert [run.info.status for run in Held(uri).runs("digits")] == ["FINISHED"] * 2


@pytest.mark.parametrize("text", ["nope", "[]", '{"format": 2}'])
def test_a_damaged_sweep_is_one_sentence(
    text: str, tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "store" / "a_run", make_run(2))
    (tmp_path / "plan.json").write_text(text)
    assert upload_command([str(tmp_path), "--uri", uri]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'plan.json'} cannot be read" in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_upload_command_says_what_it_did_or_what_is_wrong(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def message_of(*folders: Path, uri: str = uri) -> str:
        assert upload_command([*map(str, folders), "--uri", uri]) in (1, 2)
        return capsys.readouterr().err.strip()

    assert "none is not a folder" in message_of(tmp_path / "none")
    assert "there is no run.json in or below" in message_of(tmp_path)
    folder = write_run(tmp_path / "run", make_run(1))
    assert upload_command([str(folder), "--uri", uri]) == 0
    assert f"{folder}: added 2 rounds" in capsys.readouterr().out
    message = message_of(folder, uri=f"http://127.0.0.1:{free_port()}")
    assert "Connection refused" in message
    assert "--uri" in message
    (folder / "run.json").write_text("{")
    whole = write_run(tmp_path / "whole", make_run(1))
    assert message_of(folder, whole).startswith(f"error: {folder / 'run.json'} cannot be read")
    assert len(Held(uri).runs("digits")) == 2


# --- a real server -------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path, empty_database: Path) -> Iterator[Serve]:
    """Start `mlflow server` on a port, each time with the same database."""
    shutil.copy(empty_database, tmp_path / "server.db")
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
        command += ["--artifacts-destination", str(tmp_path / "kept")]
        with (tmp_path / "server.log").open("ab") as log:
            server = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        started.append(server)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                return server
            except OSError:
                time.sleep(0.1)
        raise AssertionError((tmp_path / "server.log").read_text())

    yield start
    for server in started:
        kill(server)


def kill(server: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(
    tmp_path: Path, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    server = serve(port)
    held, folder, result = Held(uri), tmp_path / "run", make_run(9)
    write_run(folder, make_run(3, of=9))
    with Following(folder, uri) as following:
        wait_until(lambda: any("time/seconds" in run.data.metrics for run in held.runs("digits")))
        wait_until(lambda: following.said)
        kill(server)
        for count in range(4, 10):
            write_run(folder, make_run(count, of=9))
            time.sleep(0.3)
        assert not following.end("FINISHED")
    view, *said = following.said
    assert view.startswith(f"view them: {uri}/#/experiments/")
    assert len(said) == 2
    assert said[1].endswith(f"fedray upload {folder}")

    serve(port)
    assert held.run().info.status == "RUNNING"
    for said in ("added 6 rounds, 0 params, 3 files", "nothing was missing"):
        assert upload_command([str(folder), "--uri", uri]) == 0
        assert f"{folder}: {said}" in capsys.readouterr().out
    run = held.run()
    assert run.info.status == "FINISHED"
    held.assert_every_metric_once_per_round(run, range(10))
    assert json.loads(held.artifact(run, "run.json"))["identity"] == result.info.identity
    assert (tmp_path / "kept").is_dir()
