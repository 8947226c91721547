"""DP2FL's few-shot clients, and validation images of other clients."""

from __future__ import annotations

import numpy as np
import pytest
from image_files import of_each_class
from lab import refused

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import federate
from fedray.data.imageset import TEST, TRAIN
from fedray.data.partitions.dominant_class import DominantClass, proportional
from fedray.data.validation import hold_out

CLASSES = 10


def images(train=40, test=20):
    return of_each_class(train, test, CLASSES)


def federated(source, clients=5, seed=0, test="official", **params):
    partition = component("partition", "dominant_class", **params).build()
    return federate(source, partition, DataConfig(clients=clients, test=test), Streams(seed).numpy)


def counts(data, parts):
    return np.stack([np.bincount(data.images.labels[p], minlength=CLASSES) for p in parts])


def test_four_shots_of_eight_classes_and_sixteen_of_the_dominant_one():
    data = federated(images())
    for row in counts(data, data.train):
        assert sorted(row) == [0, 0, 4, 4, 4, 4, 4, 4, 4, 16]


def test_validation_has_the_proportions_of_training_at_the_smallest_size():
    data = federated(images())
    train, validation = counts(data, data.train), counts(data, data.validation)
    assert (train == 4 * validation).all()


def test_the_test_is_the_largest_part_with_these_proportions():
    data = federated(images(test=20))
    train, test = counts(data, data.train), counts(data, data.test)
    assert (4 * test == 5 * train).all()  # 20 of the dominant class, 5 of each other
    labels = np.repeat(np.arange(3), [9, 7, 40])
    rng = np.random.default_rng(0)
    train = np.array([0, 0, 1, 2, 2, 2])  # of class 0
    assert len(proportional(labels, train, np.arange(9), rng)) == 9


def test_proportions_that_do_not_divide_are_rounded_down():
    labels = np.array([0] * 10 + [1] * 10)
    train = np.array([0, 1, 2, 10, 11])  # 3 to 2
    found = proportional(labels, train, np.concatenate([np.arange(7), np.arange(10, 20)]), RNG())
    assert np.bincount(labels[found]).tolist() == [7, 4]  # 7 / 3 * 2 = 4.67


def test_a_class_without_test_images_does_not_empty_the_test():
    labels = np.array([0] * 4 + [1] * 4)
    assert proportional(labels, np.array([0, 4]), np.array([5, 6]), RNG()).tolist() == [5, 6]
    refused(lambda: proportional(labels, np.array([0]), np.array([5, 6]), RNG()), "test image")


def RNG():
    return np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("params", [{}, {"shots": 12}, {"disjoint": True, "shots": 4}])
def test_no_client_trains_on_a_validation_image(seed, params):
    data = federated(images(train=50), clients=6, seed=seed, **params)
    assert not set(np.concatenate(data.train)) & set(np.concatenate(data.validation))
    train, validation = counts(data, data.train), counts(data, data.validation)
    assert ((train > 0) == (validation > 0)).all()


def test_clients_that_train_on_everything_leave_nothing_to_validate_on():
    refused(lambda: federated(images(train=21), clients=40), "class ")


def test_train_and_validation_are_official_training_images_and_test_is_the_official_test():
    data = federated(images())
    for train, validation, test in zip(data.train, data.validation, data.test, strict=True):
        assert (data.images.origin[np.concatenate([train, validation])] == TRAIN).all()
        assert (data.images.origin[test] == TEST).all()
        assert not set(train) & set(validation)
        for part in (train, validation, test):
            assert part.dtype == np.int64
            assert (np.diff(part) > 0).all()


def test_without_an_official_test_a_share_of_all_images_is_tested_on():
    data = federated(images(), test="local")
    tested = set(np.concatenate(data.test))
    assert not tested & set(np.concatenate([*data.train, *data.validation]))
    refused(lambda: federated(images(test=0)), "data.test=local")


def test_clients_may_share_images_unless_disjoint():
    shared = federated(images(60), clients=6)
    everything = np.concatenate([*shared.train, *shared.validation])
    assert len(np.unique(everything)) < len(everything)
    disjoint = federated(images(40), clients=2, disjoint=True)
    everything = np.concatenate([*disjoint.train, *disjoint.validation])
    assert len(np.unique(everything)) == len(everything)
    assert sorted(counts(disjoint, disjoint.train)[0])[-1] == 16


def test_too_few_images_for_disjoint_clients_is_a_sentence():
    refused(
        lambda: federated(images(12), clients=6, disjoint=True), "data.partition.disjoint=false"
    )


def test_a_small_class_keeps_images_to_validate_on():
    data = federated(images(10), clients=1)
    train, validation = counts(data, data.train), counts(data, data.validation)
    assert (validation.max(1) == 4).all()
    assert (train.max(1) == 6).all()  # 10 less the 4 of the validation
    assert ((train + validation) <= 10).all()


def test_a_client_is_the_same_however_many_there_are():
    few, many = federated(images(80), clients=3), federated(images(80), clients=7)
    for part in ("train", "test"):  # nobody may train on validation images
        for a, b in zip(getattr(few, part), getattr(many, part), strict=False):
            assert np.array_equal(a, b)
    assert federated(images(), seed=1).sha256 != federated(images()).sha256


def test_parameters_change_what_they_say():
    data = federated(images(), shots=8, excluded=0.5, kept_share=0.5)
    for row in counts(data, data.train):
        assert sorted(row) == [0, 0, 0, 0, 0, 4, 4, 4, 4, 8]
    even = federated(images(), kept_share=1.0)
    assert sorted(counts(even, even.train)[0]) == [0, 0] + [16] * 8


def test_validation_is_part_of_what_identifies_the_data():
    data = federated(images())
    bare = type(data)(data.images, data.train, data.test)
    assert bare.sha256 != data.sha256
    assert set(np.concatenate(data.validation)) <= set(data.used)
    manifest = data.manifest()["clients"][0]
    assert manifest["validation"] == data.validation[0].tolist()
    assert "validation" not in bare.manifest()["clients"][0]


def test_a_protocol_with_validation_images_refuses_others():
    refused(
        lambda: hold_out(federated(images()), 0.2, Streams(0).numpy), "data.validation_fraction"
    )


@pytest.mark.parametrize("key", ["imbalance", "shots", "novel"])
def test_what_would_be_ignored_is_refused(key):
    value = {"imbalance": 10.0, "shots": 4, "novel": True}[key]
    with pytest.raises(UserError, match=rf"remove data\.{key}"):
        federate(
            images(),
            DominantClass(),
            DataConfig(clients=2, test="official", **{key: value}),
            Streams(0).numpy,
        )
