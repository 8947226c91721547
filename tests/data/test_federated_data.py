"""Local splits, subsets, and what identifies a partition."""

from __future__ import annotations

import json

import numpy as np
import pytest
from image_files import made
from lab import refused

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import (
    FederatedData,
    ImageSet,
    federate,
    local_split,
)
from fedray.data.federated import long_tailed
from fedray.data.partitions.classes import Iid


def make_images(n=400, classes=4, seed=0):
    labels = np.random.default_rng(seed).permutation(np.arange(n) % classes)
    return made(labels, seed=seed)


def make(
    images=None, seed=0, clients=5, name="fedtsp_dirichlet", samples=None, imbalance=1, **params
):
    images = make_images() if images is None else images
    partition = component("partition", name, **params).build()
    rng_for = Streams(seed).numpy
    return federate(
        images,
        partition,
        DataConfig(clients=clients, samples=samples, imbalance=imbalance),
        rng_for,
    )


def test_local_split_is_75_to_25():
    train, test = local_split(np.arange(100, 200), 0.25, np.random.default_rng(0))
    assert (len(train), len(test)) == (75, 25)
    assert sorted([*train, *test]) == list(range(100, 200))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()


@pytest.mark.parametrize(
    ("n", "fraction", "held"),
    [(90, 0.25, 23), (89, 0.25, 23), (2, 0.25, 1), (30, 0.1, 3), (5, 0.8, 4)],
)
def test_the_test_part_is_rounded_up(n, fraction, held):
    _, test = local_split(np.arange(n), fraction, np.random.default_rng(0))
    assert len(test) == held


@pytest.mark.parametrize(("n", "fraction"), [(1, 0.25), (0, 0.25), (2, 0.9)])
def test_both_parts_need_an_image(n, fraction):
    with pytest.raises(UserError, match=rf"data.test_fraction={fraction:g} takes . of a client's"):
        local_split(np.arange(n), fraction, np.random.default_rng(0))


def test_every_image_once_and_histogram():
    data = make()
    everything = np.concatenate([*data.train, *data.test])
    assert sorted(everything.tolist()) == list(range(400))
    counts = data.histogram()
    assert counts.shape == (5, 4)
    assert counts.sum(0).tolist() == [100] * 4
    held = data.images.labels[np.concatenate([data.train[2], data.test[2]])]
    assert counts[2].tolist() == [int((held == k).sum()) for k in range(4)]
    assert data.clients == 5
    assert data.class_names == ("class 0", "class 1", "class 2", "class 3")


def test_manifest_is_plain_and_complete():
    data = make()
    manifest = json.loads(json.dumps(data.manifest()))
    assert manifest["sha256"] == data.sha256
    assert manifest["images_sha256"] == data.images.sha256
    assert manifest["source"] == "made"
    assert manifest["histogram"] == data.histogram().tolist()
    assert manifest["sizes"] == [80] * 5
    assert manifest["train_sizes"] == [60] * 5
    assert manifest["clients"][4]["train"] == data.train[4].tolist()
    assert manifest["clients"][4]["test"] == data.test[4].tolist()


def test_hash_identifies_the_partition():
    data = make()
    assert data.sha256 == make().sha256
    others = [make(seed=1), make(clients=6), make(alpha=5.0), make(name="iid"), make(samples=399)]
    assert len({data.sha256, *(other.sha256 for other in others)}) == 6
    # one image moved from one client to the next, one from training to test
    first, second, *rest = data.train
    moved = FederatedData(
        data.images, (first[:-1], np.sort(np.append(second, first[-1])), *rest), data.test
    )
    assert moved.sha256 != data.sha256
    swapped = FederatedData(data.images, data.test, data.train)
    assert swapped.sha256 != data.sha256
    # other labels
    images = data.images
    relabelled = ImageSet(
        "made", images.images, 3 - images.labels, images.class_names, images.origin
    )
    assert FederatedData(relabelled, data.train, data.test).sha256 != data.sha256
    # pixels are another matter: they have their own id
    assert FederatedData(make_images(seed=0), data.train, data.test).sha256 == data.sha256


def test_subset():
    data = make(samples=100)
    used = np.concatenate([*data.train, *data.test])
    assert len(used) == len(set(used.tolist())) == 100
    assert used.max() > 200
    refused(lambda: make(samples=401), "data.samples=401")


def test_cifar100_lt_has_500_to_50_images_a_class():
    labels = np.random.default_rng(0).permutation(np.arange(50_000) % 100)
    kept = long_tailed(labels, 10, np.random.default_rng(0))
    counts = np.bincount(labels[kept])
    assert counts[[0, 1, 50, 98, 99]].tolist() == [500, 488, 156, 51, 50]
    assert len(kept) == len(set(kept.tolist())) == 19573
    assert (np.diff(kept) > 0).all()


def test_the_profile_is_exact_whatever_the_classes_hold():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 4], [100, 30, 90])  # class 1 allows 30 * sqrt(9) = 90 of the first
    assert np.bincount(labels[long_tailed(labels, 9, rng)]).tolist() == [90, 30, 0, 0, 10]
    assert len(long_tailed(np.zeros(5, np.int64), 7, rng)) == 5
    refused(lambda: make(imbalance=200), "data.imbalance=200")


def test_what_is_partitioned_is_long_tailed_and_drawn_from_the_seed():
    data, repeated, other = make(imbalance=8), make(imbalance=8), make(seed=1, imbalance=8)
    assert (
        data.histogram().sum(0).tolist() == other.histogram().sum(0).tolist() == [100, 50, 25, 12]
    )
    assert data.sha256 == repeated.sha256

    def used(data):
        return set(np.concatenate([*data.train, *data.test]).tolist())

    assert used(data) == used(repeated) != used(other)
    assert make(imbalance=1).sha256 == make().sha256


def test_the_official_test_stays_balanced():
    images = make_images(800)
    origin = (np.arange(800) >= 400).astype(np.int8)
    images = ImageSet("made", images.images, images.labels, images.class_names, origin)
    data = federate(
        images, Iid(), DataConfig(clients=5, test="official", imbalance=10), Streams(0).numpy
    )
    tested = images.labels[np.concatenate(data.test)]
    assert np.bincount(tested).tolist() == np.bincount(images.labels[400:]).tolist()
    first, *_, last = np.bincount(images.labels[np.concatenate(data.train)])
    assert first // 10 == last


def test_image_set_is_read_only_and_identified_by_content():
    one, same, other = make_images(), make_images(), make_images(seed=1)
    assert one.sha256 == same.sha256 != other.sha256
    assert len(one) == 400
    assert one.shape == (1, 4, 4)
    with pytest.raises(ValueError, match="read-only"):
        one.images[0] = 0
