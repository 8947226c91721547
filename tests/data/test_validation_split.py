"""Validation images: stratified by class, disjoint, whole, and the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_files import of_each_class
from lab import refused

from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import federate
from fedray.data.federated import GLOBAL_TEST, with_every_domain, with_global_test
from fedray.data.imageset import Domains
from fedray.data.partitions.classes import Iid
from fedray.data.validation import gives_validation, hold_out, stratified_split

DIRICHLET = component("partition", "dirichlet", alpha=0.5).build()


def images(train=40, test=12, classes=5, domains=0):
    """So many training and test images of every class, in turn of every domain."""
    where = np.arange((train + test) * classes) % max(domains, 1)
    known = Domains(tuple(f"d{i}" for i in range(domains)), where.astype(np.int16))
    return of_each_class(train, test, classes, known if domains else None)


def parts_of(data):
    return [*data.train, *data.validation, *data.test]


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=200),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_counts_by_class_are_within_one_of_the_fraction(classes, fraction, seed):
    labels = np.array(classes)
    indices = np.sort(np.random.default_rng(seed).permutation(10_000)[: len(labels)])
    left, held = stratified_split(indices, labels, fraction, np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate([left, held])), indices), "disjoint and whole"
    assert np.array_equal(left, np.sort(left))
    for c in np.unique(labels):
        n = (labels == c).sum()
        out = np.isin(indices[labels == c], held).sum()
        assert abs(out - fraction * n) < 1 + 1e-6
        assert out < n, "a class keeps at least one training image"
    assert len(held) <= math.ceil(round(fraction * len(labels), 6))
    again = stratified_split(indices, labels, fraction, np.random.default_rng(seed))
    assert np.array_equal(again[1], held)


def test_as_many_are_held_out_in_all_as_the_fraction_says():
    labels = np.repeat(np.arange(20), 3)  # 0.6 of each class: not 20 for lack of better
    _, held = stratified_split(np.arange(60), labels, 0.2, np.random.default_rng(0))
    assert len(held) == 12
    assert len(np.unique(labels[held])) == 12


def test_which_classes_round_up_is_drawn():
    labels = np.repeat(np.arange(20), 3)
    chosen = {
        tuple(labels[stratified_split(np.arange(60), labels, 0.2, np.random.default_rng(s))[1]])
        for s in range(5)
    }
    assert len(chosen) == 5


@pytest.mark.parametrize("seed", range(3))
def test_a_federations_split_is_part_of_its_hash_and_follows_its_seed(seed):
    whole = federate(images(), DIRICHLET, DataConfig(clients=4), Streams(seed).numpy)
    data = hold_out(whole, 0.2, Streams(seed).numpy)
    labels = data.images.labels
    for before, train, validation in zip(whole.train, data.train, data.validation, strict=True):
        assert np.array_equal(np.sort(np.concatenate([train, validation])), before)
        counts = np.bincount(labels[before], minlength=5)
        held = np.bincount(labels[validation], minlength=5)
        assert (np.abs(held - 0.2 * counts) < 1).all()
    assert len(np.unique(np.concatenate(parts_of(data)))) == sum(map(len, parts_of(data)))
    again = hold_out(whole, 0.2, Streams(seed).numpy)
    other = hold_out(whole, 0.2, Streams(seed + 100).numpy)
    assert again.sha256 == data.sha256
    assert len({whole.sha256, data.sha256, other.sha256}) == 3
    manifest = data.manifest()
    assert manifest["validation_sizes"] == list(map(len, data.validation))
    assert manifest["sizes"] == [
        sum(map(len, each)) for each in zip(whole.train, whole.test, strict=True)
    ]


def test_a_client_of_single_images_validates_on_none_and_one_alone_is_refused():
    data = federate(
        images(8, 8, classes=4), Iid(), DataConfig(clients=8, test_fraction=0.5), Streams(0).numpy
    )
    held = hold_out(data, 0.5, Streams(0).numpy)
    for train, validation in zip(held.train, held.validation, strict=True):
        assert set(held.images.labels[validation]) <= set(held.images.labels[train])
    few = federate(images(2), Iid(), DataConfig(clients=10, test="official"), Streams(0).numpy)
    refused(lambda: hold_out(few, 0.5, Streams(0).numpy), "validation_fraction=0.5")
    sizes = [len(part) for part in few.train]
    assert sizes == [1] * 10


def test_shared_sets_have_their_counterparts_among_validation_images():
    data = federate(
        images(domains=2),
        DIRICHLET,
        DataConfig(clients=3, test="official", novel=True),
        Streams(0).numpy,
    )
    data = with_every_domain(data, np.sort(np.concatenate(data.test)))
    data = with_global_test(hold_out(data, 0.25, Streams(0).numpy))
    everybody = np.sort(np.concatenate(data.validation))
    found = data.validation_sets
    assert set(found) == {GLOBAL_TEST, "base", "domain:d0", "domain:d1"}, "nobody holds novel ones"
    assert np.array_equal(found[GLOBAL_TEST].index, everybody)
    assert np.array_equal(found["base"].index, everybody)
    assert found["base"].classes == data.eval_sets["base"].classes
    for i in range(2):
        expected = everybody[data.images.domains.ids[everybody] == i]
        assert np.array_equal(found[f"domain:d{i}"].index, expected)
    assert (
        federate(images(), DIRICHLET, DataConfig(clients=3), Streams(0).numpy).validation_sets == {}
    )


def test_whether_there_will_be_validation_images_is_known_without_them():
    def keys(**changes):
        return DataConfig(**changes)

    assert not gives_validation(keys())
    assert gives_validation(keys(validation_fraction=0.1))
    assert gives_validation(keys(partition=component("partition", "dominant_class")))
