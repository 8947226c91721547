"""Feature skew by domains, and tests drawn from the official test images."""

from __future__ import annotations

import numpy as np
import pytest
from image_files import made
from lab import refused

from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import federate
from fedray.data.federated import _partition_test
from fedray.data.imageset import TEST, TRAIN, Domains, ImageSet


def images(n=240, classes=4, domains=3, seed=0):
    random = np.random.default_rng(seed)
    ids = random.integers(0, max(domains, 1), n).astype(np.int16)
    known = Domains(("art", "photo", "sketch")[:domains], ids) if domains else None
    return made(random.integers(0, classes, n), np.arange(n) % 4 == 0, known)


def federated(data, name="domains", clients=3, params=None, **options):
    partition = component("partition", name, **(params or {})).build()
    options = {"test": "official", **options}
    return federate(data, partition, DataConfig(clients=clients, **options), Streams(0).numpy)


def test_a_domain_is_a_client():
    data = images()
    found = federated(data)
    for domain, (train, test) in enumerate(zip(found.train, found.test, strict=True)):
        in_domain = data.domains.ids == domain
        assert train.tolist() == np.flatnonzero(in_domain & (data.origin == TRAIN)).tolist()
        assert test.tolist() == np.flatnonzero(in_domain & (data.origin == TEST)).tolist()
    assert found.client_domains() == {"art": [0], "photo": [1], "sketch": [2]}


def test_several_clients_a_domain():
    data = images(n=1200)
    found = federated(data, clients=6, params={"alpha": 0.5, "min_samples": 20})
    assert found.client_domains() == {"art": [0, 1], "photo": [2, 3], "sketch": [4, 5]}
    assert min(len(indices) for indices in found.train) >= 20
    everything = np.sort(np.concatenate(found.train))
    assert everything.tolist() == np.flatnonzero(data.origin == TRAIN).tolist()


def test_official_tests_follow_the_clients_classes_and_are_all_of_them():
    data = images(n=4000, domains=0)
    found = federated(data, "dirichlet", 5, params={"alpha": 0.3})
    pooled = np.sort(np.concatenate(found.test))
    assert pooled.tolist() == np.flatnonzero(data.origin == TEST).tolist()
    totals = np.bincount(data.labels[data.origin == TRAIN])
    test_totals = np.bincount(data.labels[data.origin == TEST])
    for train, test in zip(found.train, found.test, strict=True):
        share = np.bincount(data.labels[train], minlength=4) / totals
        got = np.bincount(data.labels[test], minlength=4)
        assert np.abs(got - share * test_totals).max() <= 1


def test_a_single_official_test_image_goes_to_the_client_that_learns_most_of_its_class():
    labels, origin = np.zeros(4, np.int64), np.array([TRAIN] * 3 + [TEST], np.int8)
    data = ImageSet("made", np.zeros((4, 1, 2, 2), np.uint8), labels, ("a", "b"), origin)
    found = _partition_test(data, (np.array([0, 2]), np.array([1])), np.array([3]))
    assert [part.tolist() for part in found] == [[3], []]


def test_a_class_that_nobody_learns_is_tested_all_the_same():
    data = images(domains=0)
    kept = (data.labels != 2) | (data.origin == TEST)
    data = ImageSet(
        "made", data.images[kept], data.labels[kept], data.class_names, data.origin[kept]
    )
    found = federated(data, "iid", 4)
    tested = data.labels[np.concatenate(found.test)]
    assert (tested == 2).sum() == ((data.labels == 2) & (data.origin == TEST)).sum() > 0


def test_a_class_that_nobody_learns_in_a_domain_is_tested_by_that_domains_clients():
    data = images()
    gone = (data.labels == 2) & (data.domains.ids == 1) & (data.origin == TRAIN)
    domains = Domains(data.domains.names, data.domains.ids[~gone])
    data = ImageSet(
        "made",
        data.images[~gone],
        data.labels[~gone],
        data.class_names,
        data.origin[~gone],
        domains,
    )
    found = federated(data)
    for domain, test in enumerate(found.test):
        here = (data.domains.ids == domain) & (data.origin == TEST)
        assert test.tolist() == np.flatnonzero(here).tolist()
    assert (data.labels[found.test[1]] == 2).any()


def test_a_subset_of_the_official_test():
    found = federated(images(domains=0), "iid", 4, test_samples=30, samples=100)
    assert sum(len(indices) for indices in found.test) == 30
    assert sum(len(indices) for indices in found.train) == 100


def test_bad_requests_name_the_key():
    refused(lambda: federated(images(domains=0)), "data.partition")
    refused(lambda: federated(images(), clients=4), "data.clients=4")
    refused(lambda: federated(images(), test_samples=999), "data.test_samples=999")
    data = images()
    trained = ImageSet("made", data.images, data.labels, data.class_names, data.origin * 0)
    refused(lambda: federated(trained, "iid"), "data.test=local")


def test_every_domains_whole_test_is_shared_by_all():
    data = images(n=1200)
    found = federated(data, clients=6, params={"min_samples": 20}, every_domain=True)
    assert list(found.eval_sets) == ["domain:art", "domain:photo", "domain:sketch"]
    for domain, eval_set in enumerate(found.eval_sets.values()):
        whole = np.flatnonzero((data.domains.ids == domain) & (data.origin == TEST))
        assert eval_set.index.tolist() == whole.tolist()
        assert eval_set.classes == range(4)


def test_with_novel_classes_the_domains_hold_the_base_classes_alone():
    found = federated(images(n=1200), every_domain=True, novel=True)
    assert list(found.eval_sets)[:3] == ["base", "novel", "domain:art"]
    domains = [found.eval_sets[f"domain:{name}"] for name in ("art", "photo", "sketch")]
    together = np.sort(np.concatenate([eval_set.index for eval_set in domains]))
    assert together.tolist() == found.eval_sets["base"].index.tolist()
    assert {eval_set.classes for eval_set in domains} == {range(2)}


def test_few_shot_clients_are_tested_on_every_domain_whole():
    data = images(n=1200)
    found = federated(data, "dominant_class", every_domain=True)
    together = np.sort(np.concatenate([each.index for each in found.eval_sets.values()]))
    assert together.tolist() == np.flatnonzero(data.origin == TEST).tolist()


def test_models_without_prompts_are_tested_on_every_domain(run):
    changes = {
        "data": {"source": "shapes", "clients": 4, "partition": "domains", "test": "official"},
        "data.every_domain": True,
        "model.group": "cnn2",
        "rounds": 1,
        "batch_size": 64,
    }
    metrics = run("fedavg", changes).results[-1].metrics
    found = [metrics[f"everyone_accuracy_{name}"] for name in ("paper", "night", "stripes")]
    assert np.mean([*found, metrics["everyone_accuracy_chessboard"]]) == pytest.approx(
        metrics["everyone_accuracy_domains"]
    )
    # one model and one client a domain: everybody's accuracy is that of the domain's client
    for name in ("paper", "night"):
        assert metrics[f"everyone_accuracy_{name}"] == metrics[f"accuracy_{name}"]
        assert metrics[f"everyone_accuracy_{name}_std"] == 0
