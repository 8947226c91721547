"""Processes that die: the run recovers by itself; after too many it stops and can be resumed."""

from __future__ import annotations

import os

import faulty
import pytest
import ray
from small import (
    Killer,
    assert_same,
    last_round,
    on_workers,
    serially,
    with_server_actor,
)

from fedray import run
from fedray.base.errors import RunFailed
from fedray.runtime import ray_executor, server
from fedray.runtime.pool import WorkerPool

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Rounds that last long enough to be hit in their middle.
SLOW = ("local_epochs=15", "participation=0.5")


def pids(pool) -> set[int]:
    asked = [worker.__ray_call__.remote(lambda _: os.getpid()) for worker in pool.workers]
    return set(ray.get(asked))


def all_there(pool) -> None:
    """Wait until every worker of the pool can be given calls."""
    assert len(pool.ready()) == 3


def test_a_worker_killed_in_the_middle_of_a_round(small, pool, tmp_path):
    experiment = small.experiment(*SLOW)
    all_there(pool)
    before = pids(pool)
    killer = Killer("ray::Worker.run", lambda: last_round(tmp_path) >= 1)
    on_workers(experiment, tmp_path, pool, 2)
    killer.join()
    assert_same(tmp_path, small.undisturbed(*SLOW))
    all_there(pool)
    after = pids(pool)
    assert before - after == set(killer.killed)
    assert len(after) == len(before)


@pytest.mark.long
def test_a_worker_killed_more_often_than_allowed(small, ray_nodes, tmp_path):
    out = tmp_path / "out"
    Killer("ray::Worker.run", lambda: last_round(out) >= 1)
    with pytest.raises(RunFailed, match=r"faults\.max_failures.*--resume") as failed:
        with_server_actor(small.experiment(*SLOW, "workers=1", "faults.max_failures=0"), out)
    assert "\n" not in str(failed.value)
    assert 1 <= last_round(out) < 3
    serially(small.experiment(*SLOW), out)
    assert_same(out, small.undisturbed(*SLOW))


@pytest.mark.long
def test_the_server_killed_before_it_hands_a_round_over_and_in_the_middle_of_another(
    small, ray_nodes, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    monkeypatch.setattr(server, "ServerActor", faulty.ServerActor)
    killer = Killer("ray::ServerActor.round_after", lambda: last_round(out) >= 2)
    records = with_server_actor(small.experiment(*SLOW, "workers=1", "faults.max_failures=2"), out)
    killer.join()
    assert len(killer.killed) == 1
    assert sorted({record.round for record in records}) == [0, 1, 2, 3]
    assert_same(out, small.undisturbed(*SLOW))


@pytest.mark.long
def test_the_server_killed_more_often_than_allowed(small, ray_nodes, tmp_path, capsys):
    out = tmp_path / "out"
    Killer("ray::ServerActor.round_after", lambda: last_round(out) >= 1)
    words = small.arguments(*SLOW, "workers=1", "faults.max_failures=0", "--no-track")
    assert run.main([*words, "--out", str(out)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "server was lost more than 0 time(s) (faults.max_failures)" in line
    assert line.endswith(f"continue with --resume {out}")
    assert 1 <= last_round(out) < 3
    serially(small.experiment(*SLOW), out)
    assert_same(out, small.undisturbed(*SLOW))


def test_no_room_for_any_worker_is_one_sentence(small, ray_nodes):
    pool = WorkerPool(
        ray_executor.Worker, small.experiment("workers=1", "cpus=9", "faults.start_timeout_s=1")
    )
    with pytest.raises(RunFailed, match=r"within 1 s \(faults\.start_timeout_s\)"):
        pool.ready()
