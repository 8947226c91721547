"""Partitions are pure, give every image once, and follow the distribution that they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab import refused

from fedray.base.errors import UserError
from fedray.config import component
from fedray.data.partitions import Annotations
from fedray.data.partitions.dirichlet import _cut, partition_evenly


def split(name, labels, clients, seed=0, /, **params):
    partition = component("partition", name, key="data.partition", **params).build()
    annotations = Annotations(np.asarray(labels, np.int64))
    return partition.split(annotations, clients, np.random.default_rng(seed))


def histogram(parts, labels, classes=10):
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def balanced(n=2000, classes=10):
    return np.random.default_rng(99).permutation(np.arange(n, dtype=np.int64) % classes)


def assert_every_index_once(parts, n, clients):
    assert len(parts) == clients
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))


alphas = st.floats(1e-4, 1e3)


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 7]), min_size=1, max_size=200),
    clients=st.integers(1, 30),
    alpha=alphas,
    seed=st.integers(0, 2**32),
    name=st.sampled_from(["iid", "exact", "official", "dirichlet", "classes"]),
)
def test_every_index_once_or_a_sentence(labels, clients, alpha, seed, name):
    params = {
        "iid": {},
        "classes": {"classes_per_client": 2},
        "exact": {"alpha": alpha, "variant": "exact"},
        "official": {"alpha": alpha, "variant": "official", "min_samples": 1, "max_draws": 20},
        "dirichlet": {"alpha": alpha, "min_samples": 1, "max_draws": 20},
    }[name]
    registered = "fedtsp_dirichlet" if name in ("exact", "official") else name
    try:
        parts = split(registered, labels, clients, seed, **params)
    except UserError as error:
        assert "data.clients" in str(error)  # noqa: PT017 - either outcome is right
        assert name not in ("iid", "exact") or clients > len(labels)
        return
    assert_every_index_once(parts, len(labels), clients)
    if name in ("iid", "exact"):
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    else:
        assert min(len(part) for part in parts) >= 1


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("iid", {}),
        ("classes", {}),
        ("dirichlet", {"alpha": 0.5}),
        ("fedtsp_dirichlet", {"variant": "official", "alpha": 0.5}),
        ("fedtsp_dirichlet", {"variant": "exact", "alpha": 0.5}),
    ],
)
def test_a_seed_keeps_the_result_and_another_changes_it(name, params):
    labels = balanced()
    once, again, other = (split(name, labels, 8, seed, **params) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


def test_no_global_generator_is_read_or_moved():
    labels = balanced()
    np.random.seed(0)  # noqa: NPY002 - the global generator is what must not matter
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = split("fedtsp_dirichlet", labels, 10)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    second = split("fedtsp_dirichlet", labels, 10)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


VARIANTS = [
    ("dirichlet", {}),
    ("fedtsp_dirichlet", {"variant": "official"}),
    ("fedtsp_dirichlet", {"variant": "exact"}),
]


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_large_alpha_is_near_uniform(name, params):
    labels = balanced(8000)
    counts = histogram(split(name, labels, 8, alpha=1e5, **params), labels)
    assert abs(counts - 100).max() <= 5


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_small_alpha_gives_few_classes(name, params):
    labels = balanced(8000)
    counts = histogram(split(name, labels, 5, alpha=0.01, **params), labels)
    held = (counts > 0.02 * counts.sum(1, keepdims=True)).sum(1)
    assert held.mean() <= 4.5
    near_uniform = histogram(split(name, labels, 5, alpha=100, **params), labels)
    assert (near_uniform > 0).all()


def test_official_reaches_its_minimum_and_caps_softly():
    labels = balanced(6000)
    for seed in range(5):
        sizes = [
            len(part)
            for part in split("fedtsp_dirichlet", labels, 10, seed, alpha=0.3, variant="official")
        ]
        assert min(sizes) >= 40  # int(min(10 / (1 - 0.75), 6000 / 10 / 2))
        # a client below n/N may take at most one whole class more
        assert max(sizes) < 600 + 600
    sizes = [
        len(part)
        for part in split("fedtsp_dirichlet", balanced(100), 10, alpha=10, variant="official")
    ]
    assert min(sizes) >= 5  # n/N/2 is less than 40


def test_exact_keeps_sizes_and_class_totals():
    labels = balanced(1797)
    parts = split("fedtsp_dirichlet", labels, 20, alpha=0.1)
    assert [len(part) for part in parts] == [90] * 17 + [89] * 3
    assert histogram(parts, labels).sum(0).tolist() == np.bincount(labels).tolist()


def test_exact_at_the_smallest_possible_size():
    labels = balanced(50)
    assert all(len(part) == 1 for part in split("fedtsp_dirichlet", labels, 50, alpha=0.1))


def test_class_mix_has_the_moments_of_the_dirichlet():
    """E[p_i] = 1/N and Var[p_i] = (1/N)(1 - 1/N) / (N alpha + 1) for each client and class."""
    labels, clients, alpha = balanced(2000, 4), 5, 0.4
    draws = np.stack(
        [
            histogram(
                split("dirichlet", labels, clients, seed, alpha=alpha, min_samples=1), labels, 4
            )
            for seed in range(400)
        ]
    )
    shares = draws / 500
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    deviation = np.sqrt(variance / 400)
    assert abs(shares.mean(0) - 1 / clients).max() < 4 * deviation
    assert shares.var(0).mean() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("variant", ["exact", "official"])
def test_no_class_is_favoured_when_sizes_are_bounded(variant):
    labels, clients = balanced(500, 5), 5
    draws = np.stack(
        [
            histogram(
                split("fedtsp_dirichlet", labels, clients, seed, alpha=0.5, variant=variant),
                labels,
                5,
            )
            for seed in range(400)
        ]
    )
    means, errors = draws.mean(0) / 100, draws.std(0) / 100 / np.sqrt(400)
    rounding = 0.01 if variant == "official" else 0  # cuts rounded down move to the last client
    assert (abs(means - 1 / clients) < 4 * errors + rounding).all()


def test_rounding_favours_no_client_unless_official():
    """With many classes of few images, floor gives the last client one of nearly every class."""
    labels = balanced(4000, 200)

    def last_to_others(name, **params):
        last, others = [], []
        for seed in range(3):
            parts = split(name, labels, 20, seed, **params)
            held = (histogram(parts, labels, 200) > 0).sum(1)
            last.append(held[-1])
            others.append(held[:-1].mean())
        return np.mean(last) / np.mean(others)

    assert last_to_others("dirichlet") < 1.2
    assert last_to_others("fedtsp_dirichlet", variant="exact") < 1.2
    assert last_to_others("fedtsp_dirichlet", variant="official") > 1.5


def test_cut_by_hand():
    shares = np.array([0.5, 0.25, 0.0, 0.25])
    assert _cut(10, shares, 0.0).tolist() == [5, 2, 0, 3]  # ends 5, 7.5, 7.5, 10
    assert _cut(10, shares, 0.6).tolist() == [5, 3, 0, 2]  # ends 5.6, 8.1, 8.1, 10.6
    assert _cut(10, shares / 7, 0.999).sum() == 10
    assert _cut(0, shares, 0.5).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-4])
def test_alpha_towards_zero_never_fails(alpha):
    labels = balanced(300)
    parts = partition_evenly(labels, 7, alpha, np.random.default_rng(0))
    assert_every_index_once(parts, 300, 7)
    parts = split("fedtsp_dirichlet", labels, 3, alpha=alpha, variant="official", min_samples=1)
    assert_every_index_once(parts, 300, 3)


def test_every_client_holds_so_many_classes_and_its_first_is_its_number():
    labels = balanced(2003)
    for seed in range(20):
        parts = split("classes", labels, 12, seed, classes_per_client=3)
        assert_every_index_once(parts, 2003, 12)
        counts = histogram(parts, labels)
        assert ((counts > 0).sum(1) == 3).all()
        assert all(counts[client, client % 10] for client in range(12))


def test_a_class_is_divided_equally_among_its_holders():
    labels = balanced(2003)
    counts = histogram(split("classes", labels, 12, classes_per_client=3), labels)
    for c, total in enumerate(np.bincount(labels)):
        held = counts[counts[:, c] > 0, c]
        first = total % len(held)
        assert held.tolist() == [total // len(held) + (i < first) for i in range(len(held))]


def test_every_class_has_a_holder_even_with_few_clients():
    for seed in range(20):
        counts = histogram(split("classes", balanced(), 4, seed, classes_per_client=3), balanced())
        assert (counts.sum(0) == 200).all()
        assert ((counts > 0).sum(1) == 3).all()
    counts = histogram(split("classes", balanced(), 5, classes_per_client=2), balanced())
    assert (counts.sum(1) == 400).all()  # just enough: every class has one holder


@pytest.mark.parametrize("per_client", [2, 3])
@pytest.mark.parametrize(("clients", "images"), [(10, 6000), (7, 6003)])
def test_equal_sizes_have_so_many_classes_and_equally_many_images(per_client, clients, images):
    """FedGLCL, appendix C.1."""
    labels, drawn = balanced(images), set()
    for seed in range(30):
        params = {"classes_per_client": per_client, "equal_sizes": True}
        parts = split("classes", labels, clients, seed, **params)
        counts = histogram(parts, labels)
        assert ((counts > 0).sum(1) == per_client).all()
        assert np.ptp(counts.sum(1)) == 0
        assert (counts.sum(0) > 0).all()
        assert len(np.unique(np.concatenate(parts))) == counts.sum()
        assert counts.sum() == images if clients == 10 else counts.sum() > 0.6 * images
        drawn.add(tuple(np.flatnonzero(counts[0])))
    assert len(drawn) > 15  # the classes are drawn


def test_the_other_classes_are_drawn_evenly():
    """Client 0 holds class 0 and one of the nine others, each with probability 1/9."""
    labels = balanced(400)
    draws = np.stack(
        [histogram(split("classes", labels, 10, seed), labels)[0] > 0 for seed in range(900)]
    )
    assert draws[:, 0].all()
    assert abs(draws[:, 1:].sum(0) - 100).max() < 4 * np.sqrt(900 * 1 / 9 * 8 / 9)


# --- what cannot be served -----------------------------------------------------------------------

OFFICIAL = {"variant": "official", "alpha": 0.01, "min_samples": 95, "max_draws": 7}


@pytest.mark.parametrize(
    ("name", "params", "labels", "clients", "key"),
    [
        ("iid", {}, balanced(10), 11, "data.clients"),
        ("fedtsp_dirichlet", {}, balanced(10), 11, "data.clients"),
        ("fedtsp_dirichlet", {"min_samples": 20}, balanced(10), 11, "data.partition.min_samples"),
        ("fedtsp_dirichlet", OFFICIAL, balanced(), 20, "data.partition"),
        ("dirichlet", {}, balanced(10), 11, "data.partition.min_samples"),
        ("classes", {}, balanced(), 4, "data.partition.classes_per_client=2"),
        ("classes", {"classes_per_client": 11}, balanced(), 5, "classes_per_client=11"),
        ("classes", {"classes_per_client": 1}, [0, 3, 3], 4, "data.partition.classes_per_client"),
        ("class_chunks", {}, balanced(20, 4), 5, "data.clients"),
        ("class_groups", {"classes": (3, 1), "clients": (5,)}, balanced(40, 4), 5, "clients="),
        ("class_groups", {"classes": (3, 0), "clients": (3, 2)}, balanced(), 5, "classes"),
        ("class_groups", {"classes": (3, 1), "clients": (3, 1)}, balanced(40, 4), 5, "clients="),
        ("class_groups", {"classes": (2, 1), "clients": (3, 2)}, balanced(40, 4), 5, "classes="),
        ("class_groups", {"classes": (4, 2), "clients": (3, 2)}, balanced(40, 4), 5, "found 0"),
        (
            "class_groups",
            {"classes": (4,), "clients": (3,), "within": "dominant_class"},
            *(balanced(40, 4), 3, "data.partition.within=dominant_class"),
        ),
        ("domains", {}, balanced(), 4, "data.partition=domains"),
    ],
)
def test_what_cannot_be_divided_is_a_sentence_with_its_key(name, params, labels, clients, key):
    refused(lambda: split(name, labels, clients, **params), key)
