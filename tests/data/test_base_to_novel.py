"""Base-to-novel: who trains on which classes, and what everybody is evaluated on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompting import initial_prompts

from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.core import ClientState, LocalContext
from fedray.data import ImageSet, federate
from fedray.data.federated import base_classes, few_shots
from fedray.data.partitions import Annotations
from fedray.data.partitions.classes import ClassChunks
from fedray.evaluation.measures import harmonic_mean
from fedray.evaluation.splits import split_names, splits_of
from fedray.evaluation.testing import counts_of
from fedray.runtime.groups import GroupRunner


def images(classes: int = 7, train: int = 20, test: int = 6) -> ImageSet:
    each = train + test
    labels = np.repeat(np.arange(classes, dtype=np.int64), each)
    pixels = np.zeros((len(labels), 1, 8, 8), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(len(labels)) % 256
    origin = np.tile(np.array([0] * train + [1] * test, np.int8), classes)
    return ImageSet(
        "made", pixels, labels, tuple(f"kind_{chr(97 + c)}" for c in range(classes)), origin
    )


def federated(clients: int = 2, **changes):
    partition = component("partition", "class_chunks").build()
    options = {"shots": 5, "novel": True, "test": "official", **changes}
    return federate(images(), partition, DataConfig(clients=clients, **options), Streams(3).numpy)


@pytest.mark.parametrize(("classes", "expected"), [(37, 19), (47, 24), (100, 50), (10, 5)])
def test_base_is_the_first_half_rounded_up(classes, expected):
    assert base_classes(classes) == expected


@pytest.mark.parametrize(
    ("m", "per_client", "last"),
    [(19, 2, 1), (51, 5, 6), (24, 2, 6), (50, 5, 5), (98, 10, 8), (199, 20, 19), (25, 2, 7)],
)
def test_chunks_are_the_cards(m, per_client, last):
    labels = np.repeat(np.arange(m), 3)
    parts = ClassChunks().split(Annotations(labels), 10, np.random.default_rng(0))
    held = [len(np.unique(labels[part])) for part in parts]
    assert held == [per_client] * 9 + [last]
    assert sorted(np.concatenate(parts)) == list(range(3 * m))


def test_all_seeds_share_one_assignment_of_classes():
    labels = np.repeat(np.arange(20), 4)
    first, second = (
        ClassChunks().split(Annotations(labels), 5, np.random.default_rng(seed)) for seed in (0, 1)
    )
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    other = ClassChunks(class_seed=1).split(Annotations(labels), 5, None)
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other, strict=True))


def test_shots_are_distinct_images_of_each_class():
    labels = np.repeat(np.arange(3), [10, 4, 7])
    kept = few_shots(labels, 5, np.random.default_rng(0))
    assert np.bincount(labels[kept]).tolist() == [5, 4, 5]
    assert len(set(kept.tolist())) == len(kept)


def test_clients_train_on_base_classes_and_all_are_evaluated():
    data = federated()
    labels = data.images.labels
    assert data.class_names == tuple(f"kind_{chr(97 + c)}" for c in range(4))
    assert data.novel_names == tuple(f"kind_{chr(97 + c)}" for c in range(4, 7))
    held = [set(labels[indices]) for indices in data.train]
    assert sorted(len(classes) for classes in held) == [2, 2]
    assert held[0] | held[1] == {0, 1, 2, 3}
    assert [len(indices) for indices in data.train] == [10, 10]
    for classes, test in zip(held, data.test, strict=True):
        assert set(labels[test]) == classes
        assert len(test) == 12
    base, novel = data.eval_sets["base"], data.eval_sets["novel"]
    assert (base.classes, novel.classes) == (range(4), range(4, 7))
    assert (len(base.index), len(novel.index)) == (24, 18)
    assert set(labels[novel.index]) == {4, 5, 6}
    assert (data.images.origin[np.concatenate([base.index, novel.index])] == 1).all()
    assert len(data.used) == 10 + 10 + 24 + 18


CHANGES = {
    "data.samples": None,
    "data.clients": 2,
    "data.test": "official",
    "data.novel": True,
    "data.partition": {"name": "class_chunks"},
    "data.shots": 4,
    "rounds": 1,
}


def with_images(assemble, name="promptfl", changes=None):
    return assemble(name, {**CHANGES, **(changes or {})}, federated())


def test_novel_classes_are_predicted_within_the_novel_subset(assemble):
    """A model that always names one column is right for exactly that class of each set."""
    assembly = with_images(assemble)
    assert assembly.setting.class_names == tuple(f"kind_{chr(97 + c)}" for c in range(4))
    runtime = GroupRunner(assembly, torch.device("cpu"))
    client = runtime.client(0, 1)
    state = ClientState(initial_prompts(assembly))
    local = LocalContext(client, client.load(state.model), state, None)
    columns: list[int] = []

    def always_second(output, local):
        columns.append(output.logits.shape[1])
        return torch.eye(columns[-1])[torch.full((len(output.logits),), 1)]

    algorithm = assembly.algorithm
    vars(algorithm)["predict"] = always_second
    splits = splits_of(assembly.data, [[0]], assembly.models.samples(client.device))
    found = dict(
        zip(split_names(assembly.data), counts_of(algorithm, local, splits)[0], strict=True)
    )
    assert set(columns) == {4, 3}
    assert found["base"][:2].tolist() == [[0, 6, 0, 0], [6, 6, 6, 6]]
    assert found["novel"][:2].tolist() == [[0, 6, 0, 0], [6, 6, 6, 0]]
    assert local.model.classes == (0, 1, 2, 3)  # as before


def test_means_over_clients_and_of_base_and_novel(run):
    result = run("promptfl", CHANGES, data=federated())
    found = result.results[-1].metrics
    base, novel = found["accuracy_base"], found["accuracy_novel"]
    assert found["accuracy_hm"] == pytest.approx(harmonic_mean(base, novel))
    assert found["accuracy_cm"] == pytest.approx(
        (found["local_accuracy"] + found["accuracy_hm"]) / 2
    )
    assert 0 < base < 1


@pytest.mark.parametrize(("b", "n", "expected"), [(0.5, 0.5, 0.5), (0.9, 0.6, 0.72), (0, 0, 0)])
def test_harmonic_mean(b, n, expected):
    assert harmonic_mean(b, n) == pytest.approx(expected)
