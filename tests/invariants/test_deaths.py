"""Processes that die: the run recovers by itself; after too many it stops and can be resumed."""

from __future__ import annotations

import faulty
import pytest
import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError
from small import (
    Killer,
    assert_same,
    last_round,
    on_workers,
    serially,
    with_server_actor,
)

from fedray.cli import run
from fedray.errors import RunFailed
from fedray.runtime import ray_executor, server
from fedray.runtime.pool import WorkerPool

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Rounds that last long enough to be hit in their middle.
SLOW = ("local_epochs=15", "participation=0.5")


def pids(pool, experiment) -> set[int]:
    text = experiment.model_dump_json(by_alias=True)
    return set(ray.get([worker.warm_up.remote(text) for worker in pool.workers]))


def test_a_worker_killed_in_the_middle_of_a_round(small, pool, tmp_path):
    experiment = small.experiment(*SLOW)
    before = pids(pool, experiment)
    killer = Killer("ray::Worker.step", lambda: last_round(tmp_path) >= 1)
    on_workers(experiment, tmp_path, pool, 2)
    killer.join()
    assert_same(tmp_path, small.undisturbed(*SLOW))
    after = pids(pool, experiment)
    assert before - after == set(killer.killed)
    assert len(after) == len(before)


@pytest.mark.long
def test_a_worker_killed_more_often_than_allowed(small, ray_nodes, tmp_path):
    out = tmp_path / "out"
    Killer("ray::Worker.step", lambda: last_round(out) >= 1)
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
    killer = Killer("ray::ServerActor.run", lambda: last_round(out) >= 2)
    records = with_server_actor(small.experiment(*SLOW, "workers=1", "faults.max_failures=2"), out)
    killer.join()
    assert len(killer.killed) == 1
    assert sorted({record.round for record in records}) == [0, 1, 2, 3]
    assert_same(out, small.undisturbed(*SLOW))


@pytest.mark.long
def test_the_server_killed_more_often_than_allowed(small, ray_nodes, tmp_path, capsys):
    out = tmp_path / "out"
    Killer("ray::ServerActor.run", lambda: last_round(out) >= 1)
    words = small.arguments(*SLOW, "workers=1", "faults.max_failures=0", "--no-track")
    assert run.main([*words, "--out", str(out)]) == 1
    assert capsys.readouterr().err == (
        "failed: the server died 1 time(s) (faults.max_failures=0); the last checkpoint is in "
        f"{out}, continue with --resume {out}\n"
    )
    assert 1 <= last_round(out) < 3
    serially(small.experiment(*SLOW), out)
    assert_same(out, small.undisturbed(*SLOW))


@pytest.mark.long
def test_lost_states_send_the_run_back_to_its_checkpoint(small, ray_nodes, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(server, "ServerActor", faulty.LosingServer)
    words = ("checkpoint_every=2", "workers=1")
    records = with_server_actor(small.experiment(*words, "faults.max_failures=1"), out)
    assert out.with_suffix(".lost").exists()
    assert sorted({record.round for record in records}) == [0, 1, 2, 3]
    assert_same(out, small.undisturbed("checkpoint_every=2"))

    again = tmp_path / "again"
    with pytest.raises(RunFailed, match=r"states were lost.*--resume") as failed:
        with_server_actor(small.experiment(*words, "faults.max_failures=0"), again)
    assert "\n" not in str(failed.value)


def test_a_worker_that_finds_no_place_is_done_without(small, ray_nodes, tmp_path, monkeypatch):
    wait = ray.wait

    def all_but_the_last(refs, **options):
        ready = wait(refs, num_returns=len(refs))[0]
        return [ref for ref in ready if ref != refs[-1]], [refs[-1]]

    pool = WorkerPool(small.experiment("workers=2"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray, "wait", all_but_the_last)
            pool.wait()
        assert len(pool.workers) == 1
        on_workers(small.experiment(), tmp_path, pool, 2)
    finally:
        pool.close()
    assert_same(tmp_path, small.undisturbed())


def test_no_room_for_any_worker_is_one_sentence(small, ray_nodes):
    pool = WorkerPool(small.experiment("workers=1", "cpus=9", "faults.start_timeout_s=1"))
    with pytest.raises(RunFailed, match=r"within 1 s \(faults\.start_timeout_s\)"):
        pool.wait()


@pytest.mark.parametrize("kind", [ActorUnavailableError, OutOfMemoryError])
def test_a_worker_that_is_lost_is_replaced(small, pool, tmp_path, monkeypatch, kind):
    """As when its node dies and calls are refused before that is known, or memory runs out."""
    about = (pool.workers[0]._actor_id.binary(),) if kind is ActorUnavailableError else ()
    refused = iter([kind("no answer", *about)])
    get = ray_executor.get

    def unreachable_once(refs):
        error = next(refused, None)
        if error is not None:
            raise error
        return get(refs)

    monkeypatch.setattr(ray_executor, "get", unreachable_once)
    first = pool.workers[0]
    on_workers(small.experiment("faults.max_failures=1"), tmp_path, pool, 1)
    assert first not in pool.workers
    assert_same(tmp_path, small.undisturbed())
