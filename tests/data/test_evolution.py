"""Data that changes: phases of partitions, groups of classes."""

from __future__ import annotations

import numpy as np
import pytest
from image_files import made
from lab import refused

from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import federate
from fedray.data.evolution import federate_phases

RNG = Streams(0).numpy


IMAGES = made(np.random.default_rng(0).permutation(np.arange(600) % 4), np.arange(600) % 6 == 0)


def evolved(alphas, *, tests="kept", **options):
    """The data of the first phase alone, and that of all phases."""
    phases = [
        {"round": 3 + 2 * number, "partition": {"alpha": alpha}}
        for number, alpha in enumerate(alphas)
    ]
    evolution = component("data evolution", "repartition", phases=phases, tests=tests)
    keys = DataConfig(
        clients=5, partition=component("partition", "fedtsp_dirichlet", alpha=0.2), **options
    )
    changing = keys.model_copy(update={"evolution": evolution})
    return federate_phases(IMAGES, keys, RNG), federate_phases(IMAGES, changing, RNG)


def every(parts):
    return np.sort(np.concatenate(parts))


def test_a_phase_holds_from_its_round_on():
    first, data = evolved([100, 0.2])
    assert [start for start, _ in data.phases] == [0, 3, 5]
    assert data.at(0) is data.at(2) is data
    assert data.at(3) is data.at(4) is data.later[0][1]
    assert data.at(5) is data.at(99) is data.later[1][1]
    spread = [phase.histogram().std(0).mean() for _, phase in data.phases]
    assert spread[1] < spread[0] / 4, "alpha = 100 is near uniform"
    assert not np.array_equal(data.histogram(), data.later[1][1].histogram()), "drawn anew"
    for own, before in zip(data.train, first.train, strict=True):
        assert np.array_equal(own, before)


@pytest.mark.parametrize(
    "options", [{}, {"validation_fraction": 0.2}, {"test": "official"}, {"samples": 400}]
)
def test_kept_tests_are_never_trained_on(options):
    _, data = evolved([100, 1], **options)
    for _, phase in data.later:
        assert np.array_equal(every(phase.test), every(data.test))
        assert np.array_equal(every(phase.train), every(data.train))
        if phase.validation is not None:
            assert np.array_equal(every(phase.validation), every(data.validation))


@pytest.mark.parametrize("tests", ["kept", "redrawn"])
def test_phases_of_few_shots_are_refused(tests):
    for first, then in (("iid", "dominant_class"), ("dominant_class", "iid")):
        phases = [{"round": 2, "partition": then}]
        evolution = component("data evolution", "repartition", phases=phases, tests=tests)
        keys = DataConfig(clients=2, partition=component("partition", first), evolution=evolution)
        refused(lambda keys=keys: federate_phases(IMAGES, keys, RNG), "dominant_class")


def test_redrawn_tests_are_as_in_the_official_code():
    _, data = evolved([100], tests="redrawn", validation_fraction=0.2)
    then = data.later[0][1]
    assert np.intersect1d(every(then.test), every(data.train)).size
    assert np.array_equal(every([*then.train, *then.test, *then.validation]), np.arange(600))
    shares = [len(test) / 120 for test in then.test]
    assert shares == pytest.approx([0.25] * 5, abs=0.02)


def test_hash_and_manifest_cover_every_phase():
    first, data = evolved([100])
    _, other = evolved([50])
    assert len({first.sha256, data.sha256, other.sha256}) == 3
    manifest = data.manifest()
    assert "later" not in first.manifest()
    assert manifest["sha256"] == data.sha256
    (later,) = manifest["later"]
    assert later["round"] == 3
    assert later["histogram"] == data.later[0][1].histogram().tolist()
    assert later["clients"][2]["test"] == data.later[0][1].test[2].tolist()


def test_a_phase_that_cannot_serve_the_clients_is_named():
    phases = [{"round": 4, "partition": {"alpha": 1, "min_samples": 500}}]
    keys = DataConfig(
        clients=5, evolution=component("data evolution", "repartition", phases=phases)
    )
    refused(
        lambda: federate_phases(IMAGES, keys, RNG), "data.evolution", "round 4", "data.partition"
    )


def groups(classes=(3, 1), clients=(3, 2), **within):
    within = {"name": "fedtsp_dirichlet", **within}
    return component(
        "partition", "class_groups", classes=classes, clients=clients, within=within
    ).build()


def test_groups_of_classes_go_to_groups_of_clients():
    data = federate(IMAGES, groups(), DataConfig(clients=5), RNG)
    histogram = data.histogram()
    assert (histogram[:3, :3].sum(0) > 0).all()
    assert not histogram[:3, 3].any()
    assert not histogram[3:, :3].any()
    assert (histogram[3:, 3] > 0).all()
    assert np.array_equal(every([*data.train, *data.test]), np.arange(600))
