"""A federation's data: one image set, and which of its images each client trains and tests on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedray.config import validate
from fedray.data.imageset import TEST, TRAIN, VALIDATION, Domains, ImageSet
from fedray.data.partitions import FewShotProtocol, Indices, partitions
from fedray.errors import UserError


@dataclass(frozen=True, eq=False)
class SharedTest:
    """Test images that every client's model is examined on, among classes of their own.

    Attributes:
        index: positions of the images, sorted.
        classes: the classes that an answer is chosen from; they hold all the images' labels.
    """

    index: Indices
    classes: range


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Who owns what; nothing is copied out of the images.

    Attributes:
        images: all images; usually mapped from disk.
        train: N sorted int64 arrays of positions in `images`, what each client learns from.
        test: likewise, what each client tests on.
        shared_tests: what all clients' models are examined on besides, by name.
        base: how many classes, the first ones, are trained on; None for all.
        validation: likewise, what each client validates on, or None where nobody does.
    """

    images: ImageSet
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    shared_tests: Mapping[str, SharedTest] = field(default_factory=dict)
    base: int | None = None
    validation: tuple[Indices, ...] | None = None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names of the classes that are trained on; their order is the labels'."""
        return self.images.class_names[: self.base]

    @property
    def novel_names(self) -> tuple[str, ...]:
        """Names of the classes that are only asked for, whose labels follow."""
        return () if self.base is None else self.images.class_names[self.base :]

    @cached_property
    def used(self) -> Indices:
        """Positions of all images that some client trains, tests or validates on, sorted."""
        shared = [exam.index for exam in self.shared_tests.values()]
        own = [*self.train, *self.test, *(self.validation or ())]
        return np.unique(np.concatenate([*own, *shared]))

    def client_domains(self) -> dict[str, list[int]] | None:
        """The clients of each domain, if every client's images are of one domain; else None."""
        if self.images.domains is None:
            return None
        names, ids = self.images.domains.names, self.images.domains.ids
        clients: dict[str, list[int]] = {}
        for client, own in enumerate(self.train):
            found = np.unique(ids[own])
            if len(found) > 1:
                return None
            clients.setdefault(names[int(found[0])], []).append(client)
        return clients

    def histogram(self) -> Indices:
        """Images by client and class, training and test together: int64 [N, C]."""
        return self.train_histogram() + self._count(self.test)

    def train_histogram(self) -> Indices:
        """Training images by client and class: int64 [N, C]."""
        return self._count(self.train)

    def _count(self, parts: Sequence[Indices]) -> Indices:
        labels, classes = self.images.labels, len(self.class_names)
        return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])

    @property
    def _parts(self) -> tuple[tuple[Indices, ...], ...]:
        return (self.train, self.test, *([] if self.validation is None else [self.validation]))

    @cached_property
    def sha256(self) -> str:
        """What identifies the partition: every client's indices and labels, in client order."""
        digest = hashlib.sha256()
        for parts in zip(*self._parts, strict=True):
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part.astype("<i8").tobytes())
                digest.update(self.images.labels[part].astype("<i8").tobytes())
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The partition as plain data, for `partition.json`."""
        histogram = self.histogram()
        parts = self._parts
        named = dict(zip(("train", "test", "validation")[: len(parts)], parts, strict=True))
        clients = [
            {"client": i, **{name: part[i].tolist() for name, part in named.items()}}
            for i in range(self.clients)
        ]
        return {
            "sha256": self.sha256,
            "source": self.images.source,
            "images_sha256": self.images.sha256,
            "images": len(self.images),
            "class_names": list(self.class_names),
            "sizes": histogram.sum(1).tolist(),
            "train_sizes": [len(part) for part in self.train],
            "test_sizes": [len(part) for part in self.test],
            "histogram": histogram.tolist(),
            "clients": clients,
        }


def local_split(
    indices: Indices,
    rng: np.random.Generator,
    *,
    test_fraction: float = 0.25,
    owner: str = "a client",
    key: str = "data.test_fraction",
) -> tuple[Indices, Indices]:
    """Split one client's images at random, not stratified (FedTSP: 75 % and 25 %).

    Sizes are those of scikit-learn's `train_test_split`: the test part is rounded up.

    Args:
        indices: int64 [n].
        rng: random stream.
        test_fraction: share of the test part, between 0 and 1.
        owner: whose images they are, for the message.
        key: the key that gives `test_fraction`, for the message.

    Returns:
        Training and test indices, both sorted.

    Raises:
        UserError: when either part would be empty.
    """
    n = len(indices)
    held = math.ceil(round(n * test_fraction, 6))
    if not 0 < held < n:
        raise UserError(
            f"{owner} has {n} image{'s' * (n != 1)}, of which {key}={test_fraction:g} "
            f"takes {held} {'for its test' if key == 'data.test_fraction' else 'away'}; both parts "
            f"need one: lower data.clients, raise data.partition.min_samples or change {key}"
        )
    order = rng.permutation(indices)
    return np.sort(order[held:]), np.sort(order[:held])


def federate(
    images: ImageSet,
    partition_name: str,
    partition_params: Mapping[str, Any],
    clients: int,
    test_fraction: float,
    samples: int | None,
    rng_for: Callable[[str], np.random.Generator],
    *,
    test: Literal["local", "official"] = "local",
    test_samples: int | None = None,
    imbalance: float = 1.0,
    shots: int | None = None,
    novel: bool = False,
) -> FederatedData:
    """Deal images to clients, and say what each of them tests on.

    Official validation images are left to the few-shot protocols, which validate on them.

    With `test="local"` the official training and test images are dealt together, and each client
    keeps some of its own for testing (FedTSP supplementary C.4; HtFLlib). With "official" only
    training images are dealt to learn from, and the official test images are dealt by the clients'
    training counts of each class and domain: together the clients' tests are the official one.
    A few-shot protocol draws from the official training and test images; with "local", from a
    random part of both together and the `test_fraction` that is left.

    Args:
        images: what is dealt.
        partition_name: a partition's name.
        partition_params: its knobs, checked here.
        clients: N.
        test_fraction: share of each client's images that it tests on, if local.
        samples: deal only so many images, drawn at random; None deals all.
        rng_for: gives the stream for "subset", "shots", "imbalance", "partition", "split" and
            "test_subset".
        test: where the clients' tests come from.
        test_samples: use only so many official test images, drawn at random; None uses all.
        imbalance: rho of `long_tailed`, which what is dealt becomes after `samples`; with
            test="official" the test is not touched.
        shots: of what is dealt keep at most so many images of each class; None keeps all.
        novel: train on the first half of the classes, and examine everybody on all official test
            images of these ("base") and of the others ("novel"); needs test="official".

    Raises:
        UserError: for an unknown partition or knob, or when the images cannot serve the clients.
    """
    partition = partitions.get(partition_name)
    params = validate(partition.Params, dict(partition_params), "data.partition")
    if issubclass(partition, FewShotProtocol):
        thinned = {"imbalance": imbalance > 1, "shots": shots is not None, "novel": novel}
        for key in (key for key, asked in thinned.items() if asked):
            raise UserError(
                f"data.{key} thins out what is dealt, but data.partition={partition_name} draws "
                f"few images for each client itself; leave data.{key} out"
            )
        pools = _pools(images, test, test_fraction, samples, test_samples, rng_for)
        return _few_shot(partition(), params, images, pools, clients, rng_for("partition"))
    pool = _positions(images, TRAIN, TEST) if test == "local" else _positions(images, TRAIN)
    base = base_classes(len(images.class_names)) if novel else None
    if base is not None:
        pool = pool[np.asarray(images.labels)[pool] < base]
    chosen = _subset(pool, samples, rng_for("subset"), "data.samples", images.source)
    if imbalance > 1:
        labels = np.asarray(images.labels)[chosen]
        chosen = chosen[long_tailed(labels, imbalance, rng_for("imbalance"))]
    if shots is not None:
        labels = np.asarray(images.labels)[chosen]
        chosen = chosen[few_shots(labels, shots, rng_for("shots"))]
    domains = images.domains
    if domains is not None:
        domains = Domains(domains.names, domains.ids[chosen])
    owned = partition(domains).split(
        np.asarray(images.labels)[chosen], clients, params, rng_for("partition")
    )
    if test == "official":
        train = tuple(chosen[own] for own in owned)
        official = _official(images, test_samples, rng_for("test_subset"))
        if base is None:
            return FederatedData(images, train, _deal_test(images, train, official))
        exams = {
            name: SharedTest(official[np.isin(np.asarray(images.labels)[official], own)], own)
            for name, own in (
                ("base", range(base)),
                ("novel", range(base, len(images.class_names))),
            )
        }
        own_test = _deal_test(images, train, exams["base"].index)
        return FederatedData(images, train, own_test, exams, base)
    rng = rng_for("split")
    learn, keep = zip(
        *(
            local_split(chosen[own], rng, test_fraction=test_fraction, owner=f"client {client}")
            for client, own in enumerate(owned)
        ),
        strict=True,
    )
    return FederatedData(images, learn, keep)


def _pools(
    images: ImageSet,
    test: Literal["local", "official"],
    test_fraction: float,
    samples: int | None,
    test_samples: int | None,
    rng_for: Callable[[str], np.random.Generator],
) -> tuple[Indices, Indices]:
    """The images that a few-shot protocol draws from, to learn from and to test on."""
    if test == "local":
        both = _positions(images, TRAIN, TEST)
        chosen = _subset(both, samples, rng_for("subset"), "data.samples", images.source)
        return local_split(
            chosen, rng_for("split"), test_fraction=test_fraction, owner=images.source
        )
    chosen = _subset(
        _positions(images, TRAIN), samples, rng_for("subset"), "data.samples", images.source
    )
    return chosen, _official(images, test_samples, rng_for("test_subset"))


def _few_shot(
    protocol: FewShotProtocol[Any],
    params: Any,
    images: ImageSet,
    pools: tuple[Indices, Indices],
    clients: int,
    rng: np.random.Generator,
) -> FederatedData:
    labels = np.asarray(images.labels)
    official = _positions(images, VALIDATION)
    train, validation, test = protocol.splits(labels, *pools, official, clients, params, rng)
    return FederatedData(images, tuple(train), tuple(test), validation=tuple(validation))


def _positions(images: ImageSet, *origins: int) -> Indices:
    """Positions of the images of these official splits, sorted."""
    return np.flatnonzero(np.isin(images.origin, origins)).astype(np.int64, copy=False)


def _official(images: ImageSet, count: int | None, rng: np.random.Generator) -> Indices:
    """The official test images, or so many of them.

    Raises:
        UserError: when there are none, or too few.
    """
    official = _positions(images, TEST)
    if not len(official):
        raise UserError(
            f"data.test=official, but {images.source} has no official test images; "
            "set data.test=local"
        )
    return _subset(official, count, rng, "data.test_samples", images.source)


def _subset(
    pool: Indices, count: int | None, rng: np.random.Generator, key: str, source: str
) -> Indices:
    """So many of the pool, drawn at random and sorted."""
    if count is None:
        return pool
    if count > len(pool):
        raise UserError(
            f"{key}={count}, but {source} has {len(pool)} images; lower {key} or leave it out"
        )
    return np.sort(rng.permutation(pool)[:count])


def base_classes(classes: int) -> int:
    """How many of the classes are base: the first half, rounded up (CoOp's base-to-new split)."""
    return math.ceil(classes / 2)


def few_shots(labels: Indices, shots: int, rng: np.random.Generator) -> Indices:
    """At most so many images of each class, drawn without replacement.

    Args:
        labels: int64 [n].
        shots: images per class.
        rng: which images stay.

    Returns:
        Sorted positions of the images that stay, int64.
    """
    stay = [rng.permutation(np.flatnonzero(labels == c))[:shots] for c in np.unique(labels)]
    return np.sort(np.concatenate(stay)).astype(np.int64, copy=False)


def long_tailed(labels: Indices, rho: float, rng: np.random.Generator) -> Indices:
    """Thin classes out to an exponential profile, n_c = floor(n_max rho^(-c / (C - 1))).

    Cao et al., "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss", NeurIPS
    2019 (CIFAR-LT); c counts the C classes present, by label. n_max is the largest that all classes
    can serve: the images per class where they are balanced.

    Args:
        labels: int64 [n].
        rho: imbalance factor n_max / n_min, at least 1.
        rng: which images of a class stay.

    Returns:
        Sorted positions of the images that stay, int64.

    Raises:
        UserError: when the rarest class would be left without an image.
    """
    classes, totals = np.unique(labels, return_counts=True)
    profile = rho ** (-np.arange(len(classes)) / max(len(classes) - 1, 1))
    most = (totals / profile).min()
    kept = np.floor(most * profile + 1e-9).astype(np.int64)  # 500 * 10^-1 is 50, not 49
    if not kept[-1]:
        raise UserError(
            f"data.imbalance={rho:g} leaves no image of the last of {len(classes)} classes, whose "
            f"first would keep {most:.0f}; lower data.imbalance or use more images"
        )
    stay = [
        rng.permutation(np.flatnonzero(labels == c))[:count]
        for c, count in zip(classes, kept, strict=True)
    ]
    return np.sort(np.concatenate(stay)).astype(np.int64, copy=False)


def _deal_test(
    images: ImageSet, train: Sequence[Indices], official: Indices
) -> tuple[Indices, ...]:
    """Deal test images by the clients' training counts of each domain and class.

    Those of a class that nobody learns in a domain go to the domain's clients by all they own
    there; those of a domain that nobody has, to everyone by all they own.
    """
    kinds = np.asarray(images.labels).astype(np.int64)
    domain = np.zeros_like(kinds) if images.domains is None else images.domains.ids.astype(np.int64)
    kinds = domain * len(images.class_names) + kinds
    owner = np.empty(len(official), np.int64)
    for kind in np.unique(kinds[official]):
        place = np.flatnonzero(kinds[official] == kind)
        at = domain[official[place[0]]]
        counts = np.array([(kinds[own] == kind).sum() for own in train])
        if not counts.any():
            counts = np.array([(domain[own] == at).sum() for own in train])
        if not counts.any():
            counts = np.array([len(own) for own in train])
        ends = np.floor(np.cumsum(counts) / counts.sum() * len(place) + 0.5).astype(np.int64)
        owner[place] = np.searchsorted(ends, np.arange(len(place)), side="right")
    return tuple(np.sort(official[owner == client]) for client in range(len(train)))
