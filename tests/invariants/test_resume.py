"""Killed after any round and started again: the result is that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from small import (
    Few,
    assert_same,
    last_round,
    numbers,
    on_workers,
    serially,
    stop_after,
    wait_for,
)

from fedray import run
from fedray.runtime import cluster
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder, RunWriter
from fedray.storage.states import Commit, StateStore

PARTIAL = ("participation=0.5", "faults.drop=0.2")
LONGER = ("local_epochs=12", "rounds=4")


class Killed(BaseException):
    """What a process does not survive."""


def kill_when(words: list[str], out, round_: int) -> None:
    """Start `python -m fedray.run`; SIGKILL it, and all that it started, after a round."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedray.run", *words, "--out", str(out), "--no-track"],
        start_new_session=True,
    )
    try:
        wait_for(lambda: last_round(out) >= round_ or process.poll() is not None)
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for child in children:
            child.kill()
        process.wait()
        psutil.wait_procs(children, timeout=30)
    assert round_ <= last_round(out) < 4


def go_on(out) -> int:
    """`python -m fedray.run --resume OUT --executor serial`, in this process."""
    return run.main(["--resume", str(out), "--executor", "serial", "--no-track"])


def test_killed_after_the_last_checkpoint_the_end_is_written(small, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "end", lambda self: None)  # what a kill leaves undone
        serially(small.experiment(), tmp_path)
    assert not RunFolder(tmp_path).is_finished
    assert serially(small.experiment(), tmp_path) == []
    assert_same(tmp_path, small.undisturbed())
    assert RunFolder(tmp_path).is_finished


@pytest.mark.slow
@pytest.mark.parametrize(
    "round_", [0, *(pytest.param(r, marks=pytest.mark.long) for r in (1, 3)), 2]
)
def test_killed_after_any_round(small, tmp_path, round_):
    out = tmp_path / "out"
    kill_when(small.arguments(*LONGER, *PARTIAL, "--executor", "serial"), out, round_)
    assert go_on(out) == 0
    assert_same(out, small.undisturbed(*LONGER, *PARTIAL))


@pytest.mark.parametrize("round_", [0, 1, 2, 3])
@pytest.mark.parametrize("variant", [(), PARTIAL], ids=["everybody", "partial, absent"])
def test_stopped_after_any_round(small, tmp_path, round_, variant):
    experiment = small.experiment(*variant)
    stop_after(Session(experiment, tmp_path, small.serial).rounds(), round_)
    rounds = [record.round for record in serially(experiment, tmp_path)]
    assert rounds == list(range(round_ + 1, 4))
    assert_same(tmp_path, small.undisturbed(*variant))


@pytest.mark.ray
@pytest.mark.parametrize("round_", [0, 2])
def test_begun_on_workers_and_ended_in_one_process_and_the_other_way(small, pool, tmp_path, round_):
    experiment = small.experiment(*PARTIAL)
    begun = Session(experiment, tmp_path / "a", lambda a: RayExecutor(a, Few(pool, 2)))
    stop_after(begun.rounds(), round_)
    serially(experiment, tmp_path / "a")
    assert_same(tmp_path / "a", small.undisturbed(*PARTIAL))
    stop_after(Session(experiment, tmp_path / "b", small.serial).rounds(), round_)
    on_workers(experiment, tmp_path / "b", pool, 3)
    assert_same(tmp_path / "b", small.undisturbed(*PARTIAL))


@pytest.mark.parametrize("method", ["commit", "write"])
def test_killed_between_result_and_checkpoint_or_while_that_is_written(
    small, tmp_path, monkeypatch, method
):
    owner = StateStore if method == "commit" else Commit
    original = getattr(owner, method)

    def dies_in_round_2(self, first, *rest, **more):
        if (first.round if method == "commit" else self.facts.get("round")) == 2:
            raise Killed
        return original(self, first, *rest, **more)

    monkeypatch.setattr(owner, method, dies_in_round_2)
    with pytest.raises(Killed):
        serially(small.experiment(), tmp_path)
    assert method == "write" or len(numbers(tmp_path)["rounds"]) == 3  # states go on in a thread
    assert last_round(tmp_path) == 1
    monkeypatch.undo()
    serially(small.experiment(), tmp_path)
    assert_same(tmp_path, small.undisturbed())


def test_a_checkpoint_every_other_round(small, tmp_path):
    experiment = small.experiment("checkpoint_every=2", "keep.models=none")
    stop_after(Session(experiment, tmp_path, small.serial).rounds(), 1)
    assert last_round(tmp_path) == 0
    assert [record.round for record in serially(experiment, tmp_path)] == [1, 2, 3]
    assert_same(tmp_path, small.undisturbed())


def test_a_finished_run_has_nothing_left_to_do(small, tmp_path, capsys, monkeypatch):
    serially(small.experiment(), tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    assert serially(small.experiment(), tmp_path) == []
    monkeypatch.setattr(cluster, "connect", lambda *_: pytest.fail("Ray starts for nothing"))
    assert run.main(["--resume", str(tmp_path), "--no-track"]) == 0
    printed = capsys.readouterr()
    assert f"the run in {tmp_path} has finished: nothing is left to run" in printed.out
    assert "best" in printed.out
    assert "starting" not in printed.out + printed.err
    assert (tmp_path / "run.json").read_bytes() == before


def test_resumed_with_keys_that_change_no_number(small, tmp_path):
    stop_after(Session(small.experiment(), tmp_path, small.serial).rounds(), 1)
    words = ["--resume", str(tmp_path), "workers=5", "faults.max_failures=9", "--no-track"]
    assert run.main([*words, "--executor", "serial"]) == 0
    assert_same(tmp_path, small.undisturbed())


def test_resumed_by_its_folder_keeps_what_was_laid_on_a_preset(small, tmp_path):
    words = small.arguments(
        "algorithm.preset=official_code", "algorithm.learn_tau=false", "rounds=1"
    )
    words += ["--executor", "serial", "--no-track"]
    assert run.main([*words, "--out", str(tmp_path / "out")]) == 0
    assert numbers(tmp_path / "out")["config"]["algorithm"]["learn_tau"] is False
    assert go_on(tmp_path / "out") == 0
