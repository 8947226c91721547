"""`python -m fedray.run` in this process: what it writes, says, and tells the tracker."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rounds import result_in

from fedray.api import training
from fedray.base.errors import UserError
from fedray.cli import run, start
from fedray.command import Terminated
from fedray.command import run as frame
from fedray.config import read_mapping
from fedray.run import main
from fedray.runtime import server
from fedray.runtime.resolve import resolve
from fedray.storage.run_folder import RunFolder
from fedray.tracking import follow
from fedray.tracking.describe import tracked_run

QUICK = [
    "fedproto_digits",
    "rounds=3",
    "local_epochs=1",
    "data.clients=3",
    "data.samples=300",
    "model.feature_dim=8",
]
SERIAL = ["--executor", "serial", "--no-track"]


class Notes:
    """A child that writes to MLflow: what it is told."""

    returncode = 0

    def __init__(self):
        self.log = []

    def start(self, *_):
        self.log.append("started")
        return self

    def communicate(self, timeout):
        self.log.append("ended")
        return "look here", None


@pytest.fixture
def notes(monkeypatch):
    """The child of runs that are tracked."""
    notes = Notes()
    monkeypatch.setattr(follow, "_child", notes.start)
    return notes


def result_of(out):
    return result_in(out)


@pytest.mark.slow
def test_a_run_leaves_its_result_in_its_folder(tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*QUICK, "algorithm.lambda=2", "seed=4", *SERIAL, "--out", str(out)]) == 0
    files = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert files >= {"run.json", "rounds.jsonl", "states"}
    assert not [name for name in files if name.startswith(".")]

    result = result_of(out)
    assert result["config"]["seed"] == 4
    assert result["config"]["algorithm"] == {
        "name": "fedproto",
        "lambda": 2,
        "proto_agg": "weighted",
    }
    assert result["config"] == read_mapping(out / "run.json")
    assert {"python", "torch", "ray"} <= result["environment"]["versions"].keys()
    assert result["costs"]["wall_seconds"] > 0
    assert result["costs"]["startup_seconds"] > 0
    assert result["costs"]["peak_rss_bytes"] > 50e6

    rounds = result["rounds"]
    assert [record["round"] for record in rounds] == [0, 1, 2, 3]
    for record in rounds:
        assert list(record["per_client"]) == ["0", "1", "2"]
        mean = sum(record["per_client"].values()) / 3
        assert record["metrics"]["local_accuracy"] == pytest.approx(mean)
        assert record["up"].keys() == record["down"].keys() == {"params", "bytes"}
        assert record["seconds"] > 0
    assert rounds[1]["up"]["bytes"].keys() == {"prototypes", "statistics"}
    accuracies = [record["metrics"]["local_accuracy"] for record in rounds]
    held = [record["metrics"]["validation/local_accuracy"] for record in rounds]
    chosen = held.index(max(held[1:]), 1)
    best = accuracies[chosen]
    assert result["best"]["local_accuracy"] == best
    assert result["best"]["round"] == chosen
    assert result["final"]["round"] == 3
    assert result["final"]["local_accuracy"] == accuracies[3]

    printed = capsys.readouterr().out
    assert printed.startswith(
        "importing PyTorch, reading fedproto_digits ...\n"
        "fedproto_digits: fedproto on digits, 3 clients, 3 rounds, seed 4, "
        "in this process\n"
    )
    lines = [line for line in printed.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == ["0/3", "1/3", "2/3", "3/3"]
    assert f"accuracy {accuracies[2]:.4f}" in lines[2]
    assert f"{best:.4f} in round {chosen} (best on validation), last" in printed
    assert f"results: {out}\n" in printed


def test_the_config_it_leaves_is_the_experiment(tmp_path):
    out = tmp_path / "out"
    main([*QUICK, "rounds=1", "algorithm.lambda=2", *SERIAL, "--out", str(out)])
    resolved, result = resolve(str(out / "run.json")), result_of(out)
    assert resolved.identity(result["data_sha256"]) == result["identity"]
    assert resolved.identity() != resolve(QUICK[0], QUICK[1:]).identity()


def test_without_out_a_run_gets_a_folder_below_the_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    assert main([*QUICK, "rounds=1", *SERIAL]) == 0
    (out,) = (tmp_path / "results" / "runs").iterdir()
    assert re.fullmatch(r"fedproto_digits-\d{8}-\d{6}-[0-9a-f]{4}", out.name)
    assert f"results: {out}\n" in capsys.readouterr().out


def test_evaluated_now_and_then_and_at_the_end(tmp_path):
    main([*QUICK, *SERIAL, "--out", str(tmp_path / "always")])
    always = result_of(tmp_path / "always")["rounds"]
    for every, evaluated in (("2", [0, 2, 3]), ("0", [3])):
        out = tmp_path / every
        main([*QUICK, f"eval_every={every}", *SERIAL, "--out", str(out)])
        result = result_of(out)
        found = [r["round"] for r in result["rounds"] if "local_accuracy" in r["metrics"]]
        assert found == evaluated
        for number in found:
            assert result["rounds"][number]["metrics"] == always[number]["metrics"]
        assert result["final"]["round"] == 3
        assert result["best"]["round"] in evaluated


def test_without_checkpoints_there_is_a_result(tmp_path):
    out = tmp_path / "out"
    assert main([*QUICK, "checkpoint_every=0", "keep.models=none", *SERIAL, "--out", str(out)]) == 0
    assert not (out / "states").exists()
    assert len(result_of(out)["rounds"]) == 4


# --- what the tracker is told ----------------------------------------------------------------


def test_the_tracker_follows_the_run_to_its_end(tmp_path, notes, capsys):
    out = tmp_path / "out"
    assert main([*QUICK, "--executor", "serial", "--out", str(out)]) == 0
    assert notes.log == ["started", "ended"]
    assert capsys.readouterr().out.endswith("compare: look here\n")
    sent = tracked_run(out)
    assert (sent.status, len(sent.rounds)) == ("FINISHED", 4)
    assert sent.params["algorithm.name"] == "fedproto"
    assert sent.params["data.clients"] == "3"
    assert sent.tags["partition_sha256"] == result_of(out)["partition_sha256"]
    files = {path.name for path in sent.files if path.exists()}
    assert {"run.json", "rounds.jsonl"} <= files


@pytest.mark.parametrize(
    ("words", "address", "executor"),
    [
        (["workers=1"], "", "serial"),
        (["workers=1"], "auto", "ray"),
        (["workers=1", "gpus=0.5"], "", "ray"),
        (["workers=2"], "", "ray"),
        ([], "", "serial"),
        (["workers=1", "--executor", "ray"], "", "ray"),
    ],
)
def test_one_worker_without_a_cluster_is_this_process(monkeypatch, words, address, executor):
    chosen = list[str]()
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(run, "one_run", lambda request, *_: chosen.append(request.executor))
    main(["fedavg_digits", *words])
    assert chosen == [executor]


def test_rounds_that_a_restarted_server_repeats_are_given_once(tmp_path, monkeypatch):
    out = tmp_path / "out"
    main([*QUICK, *SERIAL, "--out", str(out)])
    rounds = RunFolder(out).rounds()
    session = SimpleNamespace(rounds=lambda: iter(rounds[1:]))
    monkeypatch.setattr(server, "Session", lambda *_: session)
    monkeypatch.setattr(server, "WorkerPool", MagicMock())
    monkeypatch.setattr(RunFolder, "rounds", lambda _: rounds[:2])
    restarted = server.ServerActor(resolve(QUICK[0], QUICK[1:]).model_dump_json(), str(out), 0.0)
    assert [restarted.round_after(last) for last in range(4)] == [*rounds[1:], None]


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (
            KeyboardInterrupt(),
            130,
            "interrupted; go on with: python -m fedray.run {words} --out {out} --executor serial\n",
        ),
        (
            Terminated(),
            143,
            "terminated; go on with: python -m fedray.run {words} --out {out} --executor serial\n",
        ),
        (UserError("set this.key=2"), 2, "error: set this.key=2\n"),
    ],
)
def test_a_run_that_is_stopped_says_so_and_goes_on_later(
    tmp_path, notes, monkeypatch, capsys, error, code, printed
):
    out = tmp_path / "out"
    rounds = training.begin

    def stop_after_round_1(*args):
        for done in rounds(*args):
            yield done
            if done.round == 1:
                raise error

    monkeypatch.setattr(training, "begin", stop_after_round_1)
    assert main([*QUICK, "--executor", "serial", "--out", str(out)]) == code
    assert capsys.readouterr().err == printed.format(out=out, words=" ".join(QUICK))
    assert notes.log == ["started", "ended"]
    key = tracked_run(out).key
    before = result_of(out)

    monkeypatch.setattr(training, "begin", rounds)
    notes.log.clear()
    assert main(["--resume", str(out), "--executor", "serial"]) == 0
    assert notes.log == ["started", "ended"]
    assert tracked_run(out).key == key
    after = result_of(out)
    assert after["rounds"][:2] == before["rounds"]
    assert after["costs"]["wall_seconds"] > before["costs"]["wall_seconds"]
    assert after["costs"]["startup_seconds"] == before["costs"]["startup_seconds"]


def test_an_experiment_that_cannot_begin_is_not_tracked(tmp_path, notes, capsys):
    out = tmp_path / "out"
    words = ["fedtsp_digits", "text.encoder=orthogonal", "--executor", "serial"]
    assert main([*words, "--out", str(out)]) == 2
    assert notes.log == ["started", "ended"]
    assert not out.exists()


@pytest.mark.slow
def test_two_processes_do_not_run_in_one_folder(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    out.mkdir()
    monkeypatch.setattr("fedray.storage.files.LOCK_SECONDS", 0.1)
    other = (
        "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire();"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", other, str(out / ".lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert main([*QUICK, "--out", str(out), *SERIAL]) == 2
        process.stdin.close()
    assert "another process is running in" in capsys.readouterr().err
    assert main([*QUICK, "--out", str(out), *SERIAL]) == 0


@pytest.mark.parametrize(
    ("words", "address", "early"),
    [
        ([*QUICK, "--executor", "ray"], "", True),
        ([*QUICK, "--executor", "serial"], "", False),
        (QUICK, "10.0.0.1:6379", False),
        (["fedavg_digit"], "", False),
    ],
)
def test_ray_starts_early_for_a_program_alone(monkeypatch, words, address, early):
    calls: list[str] = []
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(start, "_import_while_ray_starts", lambda *_: calls.append("starts"))
    monkeypatch.setattr(run, "one_run", lambda *_: calls.append("runs"))
    monkeypatch.setattr(sys, "argv", ["fedray.run", *words])
    is_wrong = words[0] == "fedavg_digit"
    assert frame(run.command, None) == (2 if is_wrong else 0)
    assert calls == ["starts"] * early + ["runs"] * (not is_wrong)
    calls.clear()
    assert frame(run.command, words) == (2 if is_wrong else 0)
    assert calls == ["runs"] * (not is_wrong), "not inside of another program"


@pytest.mark.parametrize("words", [[], ["fedavg_digits", "lr"], ["--resume", "nowhere"]])
def test_mistakes_that_need_no_pytorch_are_refused_before_ray_starts(monkeypatch, words):
    calls: list[str] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(start, "_import_while_ray_starts", lambda *_: calls.append("starts"))
    monkeypatch.setattr(sys, "argv", ["fedray.run", *words])
    assert frame(run.command, None) == 2
    assert not calls


@pytest.mark.slow
def test_the_first_look_at_a_file_with_plugins_does_not_import_pytorch(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: fedavg_digits\nplugins: [mine.py]\nalgorithm: {name: mine}\n"
    )
    look = f"""
import sys
from fedray.cli.run import RunRequest, check_command_line
words = ({str(tmp_path / "mine.yaml")!r}, [], "serial", None, None, True, [])
check_command_line(RunRequest(*words), [])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)
