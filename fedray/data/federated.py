"""The data of a federation: one image set, and the indices that each client trains and tests on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fedray.base.errors import UserError
from fedray.config import DataConfig
from fedray.data.imageset import TEST, TRAIN, VALIDATION, ImageSet
from fedray.data.partitions import (
    Annotations,
    Indices,
    Partition,
)
from fedray.data.partitions.dominant_class import DominantClass
from fedray.data.public import PublicData, PublicSet

StreamFor: TypeAlias = Callable[[str], np.random.Generator]
"""A function that returns the random stream of a purpose."""


@dataclass(frozen=True, eq=False)
class IndexedSet:
    """Test images that all clients' models are evaluated on, with the candidate classes.

    Attributes:
        index: positions of the images, sorted.
        classes: the classes that predictions are chosen from; they include all labels of the
            images.
    """

    index: Indices
    classes: range


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The images that each client trains, tests and validates on, as indices into one image set.

    Attributes:
        images: all images; usually mapped from disk.
        train: N sorted int64 arrays, the positions in `images` that each client trains on.
        test: N such arrays, the positions that each client tests on.
        eval_sets: shared evaluation sets by name; all clients' models are tested on them, too.
        base: the number of trained classes, which come first; None if all are trained.
        validation: N such arrays, the positions that each client validates on; None if there are
            no validation images.
        later: later phases as (first round, data); each replaces the data before
            (`data.evolution`).
        public: images that belong to no client (`data.public`); None if there are none.
    """

    images: ImageSet
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    eval_sets: Mapping[str, IndexedSet] = field(default_factory=dict)
    base: int | None = None
    validation: tuple[Indices, ...] | None = None
    later: tuple[tuple[int, FederatedData], ...] = ()
    public: PublicSet | None = None

    @property
    def phases(self) -> list[tuple[int, FederatedData]]:
        """Return the first round and the data of each phase; the first phase starts at round 0."""
        return [(0, self), *self.later]

    def at(self, round_: int) -> FederatedData:
        """Return the data of the phase that contains a round."""
        return [data for first, data in self.phases if first <= round_][-1]

    @property
    def clients(self) -> int:
        """Return N, the number of clients."""
        return len(self.train)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the C trained classes, in the order of their labels."""
        return self.images.class_names[: self.base]

    @property
    def novel_names(self) -> tuple[str, ...]:
        """Return the names of the novel classes, which are only evaluated; their labels follow."""
        return () if self.base is None else self.images.class_names[self.base :]

    @cached_property
    def used(self) -> Indices:
        """Return the positions of all images that clients train, test or validate on, sorted."""
        shared = [eval_set.index for eval_set in self.eval_sets.values()]
        later = [data.used for _, data in self.later]
        own = [part for parts in self._splits.values() for part in parts]
        return np.unique(np.concatenate([*own, *shared, *later]))

    @cached_property
    def validation_sets(self) -> Mapping[str, IndexedSet]:
        """Return the counterparts of the shared evaluation sets among validation images, by name.

        They hold all clients' validation images of the set's classes and, for a domain's set, of
        its domain. Novel classes have no validation images, because no client trains on them.
        """
        if self.validation is None:
            return {}
        validated, sets = np.unique(np.concatenate(self.validation)), dict[str, IndexedSet]()
        for name, shared in self.eval_sets.items():
            fits = np.isin(self.images.labels[validated], shared.classes)
            if name.startswith(DOMAIN) and (domains := self.images.domains) is not None:
                domain = domains.names.index(name.removeprefix(DOMAIN))
                fits &= domains.ids[validated] == domain
            if fits.any():
                sets[name] = IndexedSet(validated[fits], shared.classes)
        return sets

    def client_domains(self) -> dict[str, list[int]] | None:
        """Return the clients of each domain; None if any client has images of several domains."""
        if self.images.domains is None:
            return None
        names, ids = self.images.domains.names, self.images.domains.ids
        clients: dict[str, list[int]] = {}
        for client, train in enumerate(self.train):
            domains = np.unique(ids[train])
            if len(domains) > 1:
                return None
            clients.setdefault(names[int(domains[0])], []).append(client)
        return clients

    def histogram(self) -> Indices:
        """Return the number of images by client and class, int64 [N, C]."""
        counts: Indices = np.sum([self._count(parts) for parts in self._splits.values()], axis=0)
        return counts

    def train_histogram(self) -> Indices:
        """Return the number of training images by client and class, int64 [N, C]."""
        return self._count(self.train)

    def _count(self, parts: Sequence[Indices]) -> Indices:
        labels, classes = self.images.labels, len(self.class_names)
        return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])

    @property
    def _splits(self) -> dict[str, tuple[Indices, ...]]:
        """Return the clients' images by the names of the splits in run.json."""
        splits = {"train": self.train, "test": self.test}
        return splits if self.validation is None else {**splits, "validation": self.validation}

    @cached_property
    def sha256(self) -> str:
        """Return the SHA-256 of every client's indices and labels, in client order.

        Later phases add their first rounds and hashes; public images add their indices, labels, and
        the hash of their image set.
        """
        digest = hashlib.sha256()
        for parts in zip(*self._splits.values(), strict=True):
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part.astype("<i8").tobytes())
                digest.update(self.images.labels[part].astype("<i8").tobytes())
        for first, data in self.later:
            digest.update(first.to_bytes(8, "little"))
            digest.update(bytes.fromhex(data.sha256))
        if self.public is not None:
            digest.update(bytes.fromhex(self.public.images.sha256))
            for numbers in (self.public.index, self.public.labels[self.public.index]):
                digest.update(numbers.astype("<i8").tobytes())
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Return the partition and its later phases as JSON values, for run.json."""
        tree = {
            "sha256": self.sha256,
            "source": self.images.source,
            "images_sha256": self.images.sha256,
            "images": len(self.images),
            "image": list(self.images.shape),
            "base": self.base,
            "class_names": list(self.class_names),
            **self._clients(),
        }
        if self.later:
            tree["later"] = [{"round": first, **data._clients()} for first, data in self.later]
        if (public := self.public) is not None:
            tree["public"] = {
                "source": public.images.source,
                "images_sha256": public.images.sha256,
                "labelled": public.is_labelled,
                "images": public.index.tolist(),
            }
        return tree

    def _clients(self) -> dict[str, Any]:
        """Return the images of each client, as counts and as positions."""
        histogram, splits = self.histogram(), self._splits
        clients = [
            {"client": i, **{name: split[i].tolist() for name, split in splits.items()}}
            for i in range(self.clients)
        ]
        return {
            "sizes": histogram.sum(1).tolist(),
            **{f"{name}_sizes": [len(part) for part in split] for name, split in splits.items()},
            "histogram": histogram.tolist(),
            "clients": clients,
        }


def local_split(
    indices: Indices, test_fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split one client's images at random, not stratified (FedTSP: 75 % and 25 %).

    Sizes are those of scikit-learn's `train_test_split`: the test part is rounded up. Returns
    training and test indices, both sorted.

    Raises:
        UserError: if either part would be empty.
    """
    n = len(indices)
    test_size = math.ceil(round(n * test_fraction, 6))
    if not 0 < test_size < n:
        raise UserError(
            f"data.test_fraction={test_fraction:g} takes {test_size} of a client's {n} images for "
            "testing, but training and testing need at least one each: lower data.clients or "
            "change data.test_fraction"
        )
    order = rng.permutation(indices)
    return np.sort(order[test_size:]), np.sort(order[:test_size])


def federate(
    images: ImageSet, partition: Partition | DominantClass, keys: DataConfig, rng_for: StreamFor
) -> FederatedData:
    """Partition images over clients, and choose the images that each client tests on.

    Only `dominant_class` uses official validation images.

    With `test=local`, the official training and test images are pooled and partitioned, and each
    client keeps a part of its images for testing (FedTSP supplementary C.4; HtFLlib). With
    `test=official`, only training images are partitioned; the official test images are divided in
    proportion to the clients' training counts of each class and domain, so that the clients' tests
    add up to the official one. `dominant_class` draws from the official training and test
    images; with `test=local`, it trains on a random part of both and tests on the remaining
    `test_fraction`.

    Args:
        images: the images to partition.
        partition: the partition or protocol, with its parameters.
        keys: number of clients, their test images, and the subsampling before the partition: first
            `samples`, then `imbalance`, then `shots`.
        rng_for: returns the stream of "subset", "shots", "imbalance", "partition", "split",
            "test_subset" and "public".

    Raises:
        UserError: if the images do not suffice for the clients.
    """
    is_local = keys.test == "local"
    base = base_classes(len(images.class_names)) if keys.novel else None
    pool = _positions(images, *((TRAIN, TEST) if is_local else (TRAIN,)))
    if base is not None:
        pool = pool[images.labels[pool] < base]
    pool = _subset(pool, keys.samples, rng_for("subset"), "data.samples")
    choice: PublicData = keys.public.build()
    public = choice.take(images, pool, rng_for("public"))
    if public is not None:
        pool = np.setdiff1d(pool, public.index, assume_unique=True)
    official = _positions(images) if is_local else _official_test(images, keys, rng_for)
    if isinstance(partition, DominantClass):
        data = _few_shot(images, partition, keys, rng_for, pool, official)
    else:
        data = _partitioned(images, partition, keys, rng_for, pool)
        if not is_local:
            data = _with_official_tests(data, official, base)
    if keys.every_domain:
        data = with_every_domain(data, official if base is None else data.eval_sets["base"].index)
    return replace(data, public=public)


def _official_test(images: ImageSet, keys: DataConfig, rng_for: StreamFor) -> Indices:
    """Return `test_samples` of the official test images."""
    official = _positions(images, TEST)
    if not len(official):
        raise UserError(
            f"data.test=official, but {images.source} has no official test images; "
            "set data.test=local"
        )
    return _subset(official, keys.test_samples, rng_for("test_subset"), "data.test_samples")


def _subset(pool: Indices, count: int | None, rng: np.random.Generator, key: str) -> Indices:
    """Return `count` images of the pool, drawn at random and sorted; all of them if None."""
    if count is None:
        return pool
    if count > len(pool):
        raise UserError(f"{key}={count}, but there are {len(pool)} images; lower {key}")
    return np.sort(rng.permutation(pool)[:count])


def _few_shot(
    images: ImageSet,
    protocol: DominantClass,
    keys: DataConfig,
    rng_for: StreamFor,
    training: Indices,
    test: Indices,
) -> FederatedData:
    """Return what `dominant_class` draws from training and test images."""
    for key, default in {"imbalance": 1, "shots": None, "novel": False}.items():
        if getattr(keys, key) != default:
            raise UserError(
                f"data.{key} reduces the images before the partition, but data.partition="
                f"{protocol.name} itself draws few images for each client; remove data.{key}"
            )
    if keys.test == "local":
        training, test = local_split(training, keys.test_fraction, rng_for("split"))
    labels, official = np.asarray(images.labels), _positions(images, VALIDATION)
    rng = rng_for("partition")
    drawn = protocol.splits(labels, training, test, official, keys.clients, rng)
    train, validation, tests = map(tuple, drawn)
    return FederatedData(images, train, tests, validation=validation)


def _partitioned(
    images: ImageSet,
    partition: Partition,
    keys: DataConfig,
    rng_for: StreamFor,
    positions: Indices,
) -> FederatedData:
    """Partition a part of the images; with `test=local`, clients keep some of theirs to test on."""
    everything = Annotations(np.asarray(images.labels), images.domains)
    labels = everything.labels
    if keys.imbalance > 1:
        positions = positions[long_tailed(labels[positions], keys.imbalance, rng_for("imbalance"))]
    if keys.shots is not None:
        positions = positions[few_shots(labels[positions], keys.shots, rng_for("shots"))]
    split = partition.split(everything.at(positions), keys.clients, rng_for("partition"))
    parts = tuple(positions[part] for part in split)
    if keys.test != "local":
        return FederatedData(images, parts, parts)  # the tests follow
    rng = rng_for("split")
    train, test = zip(*(local_split(part, keys.test_fraction, rng) for part in parts), strict=True)
    return FederatedData(images, train, test)


def _with_official_tests(data: FederatedData, official: Indices, base: int | None) -> FederatedData:
    """Divide the official test images among clients; with `base`, only those of base classes."""
    images, shared = data.images, dict[str, IndexedSet]()
    if base is not None:
        is_base = images.labels[official] < base
        shared["base"] = IndexedSet(official[is_base], range(base))
        shared["novel"] = IndexedSet(official[~is_base], range(base, len(images.class_names)))
        official = shared["base"].index
    test = _partition_test(images, data.train, official)
    return replace(data, test=test, eval_sets=shared, base=base)


DOMAIN = "domain:"
"""Prefix of the names of the evaluation sets of `with_every_domain`."""


def with_every_domain(data: FederatedData, tested: Indices) -> FederatedData:
    """Return the data with `tested`, all test images, as shared evaluation sets by domain.

    Raises:
        UserError: if the images have no domains.
    """
    domains = data.images.domains
    if domains is None:
        raise UserError(f"data.every_domain: {data.images.source} has no domains; remove the key")
    classes, sets = range(len(data.class_names)), dict(data.eval_sets)
    for i, name in enumerate(domains.names):
        if len(index := tested[domains.ids[tested] == i]):
            sets[f"{DOMAIN}{name}"] = IndexedSet(index, classes)
    return replace(data, eval_sets=sets)


GLOBAL_TEST = "everybody"
"""Name of the evaluation set of all clients' test images."""


def with_global_test(data: FederatedData) -> FederatedData:
    """Return the data with all clients' test images as an evaluation set, in every phase."""
    all_tests = IndexedSet(np.unique(np.concatenate(data.test)), range(len(data.class_names)))
    return replace(
        data,
        eval_sets={**data.eval_sets, GLOBAL_TEST: all_tests},
        later=tuple((first, with_global_test(phase)) for first, phase in data.later),
    )


def _positions(images: ImageSet, *origins: int) -> Indices:
    """Return the positions of the images of these official splits, sorted."""
    return np.flatnonzero(np.isin(images.origin, origins)).astype(np.int64, copy=False)


def base_classes(classes: int) -> int:
    """Return the number of base classes: the first half, rounded up (CoOp's base-to-new split)."""
    return math.ceil(classes / 2)


def few_shots(labels: Indices, shots: int, rng: np.random.Generator) -> Indices:
    """Draw at most `shots` images of each class without replacement; return sorted positions."""
    return _drawn(labels, [shots] * len(np.unique(labels)), rng)


def _drawn(labels: Indices, counts: Iterable[int], rng: np.random.Generator) -> Indices:
    """Draw this many images of each class that is present; return their sorted positions."""
    drawn = [
        rng.permutation(np.flatnonzero(labels == c))[:count]
        for c, count in zip(np.unique(labels), counts, strict=True)
    ]
    return np.sort(np.concatenate(drawn)).astype(np.int64, copy=False)


def long_tailed(labels: Indices, rho: float, rng: np.random.Generator) -> Indices:
    """Subsample classes to an exponential profile, n_c = floor(n_max rho^(-c / (C - 1))).

    Cao et al., "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss", NeurIPS
    2019 (CIFAR-LT); c counts the C classes present, by label. n_max is the largest value for which
    every class has enough images; for balanced classes, this is the number of images per class.
    rho = n_max / n_min is at least 1. Returns the sorted positions of the selected images.

    Raises:
        UserError: if no image of the rarest class would remain.
    """
    classes, totals = np.unique(labels, return_counts=True)
    profile = rho ** (-np.arange(len(classes)) / max(len(classes) - 1, 1))
    most = (totals / profile).min()
    counts = np.floor(most * profile + 1e-9).astype(np.int64)  # 500 * 10^-1 is 50, not 49
    if not counts[-1]:
        raise UserError(
            f"data.imbalance={rho:g} leaves no image of the last of {len(classes)} classes, whose "
            f"first would keep {most:.0f}; lower data.imbalance or use more images"
        )
    return _drawn(labels, counts, rng)


def _partition_test(
    images: ImageSet, train: Sequence[Indices], official: Indices
) -> tuple[Indices, ...]:
    """Divide test images by the clients' training counts of each domain and class.

    If no client trains on a class in a domain, its test images go to the clients of that domain, in
    proportion to their images in it. If no client has images of a domain, they go to all clients,
    in proportion to their images.
    """
    labels = np.asarray(images.labels).astype(np.int64)
    ids = None if images.domains is None else images.domains.ids.astype(np.int64)
    domain = np.zeros_like(labels) if ids is None else ids
    classes = len(images.class_names)
    stratum = domain * classes + labels
    strata = int(stratum.max(initial=0)) // classes * classes + classes
    trained = np.stack([np.bincount(stratum[part], minlength=strata) for part in train])
    by_domain = trained.reshape(len(train), -1, classes).sum(2)
    by_stratum = np.argsort(stratum[official], kind="stable")
    values, starts = np.unique(stratum[official][by_stratum], return_index=True)
    owner = np.empty(len(official), np.int64)
    for value, members in zip(values, np.split(by_stratum, starts[1:]), strict=True):
        counts = trained[:, value]
        if not counts.any():
            counts = by_domain[:, value // classes]
        if not counts.any():
            counts = trained.sum(1)
        ends = np.floor(np.cumsum(counts) / counts.sum() * len(members) + 0.5).astype(np.int64)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return tuple(np.sort(official[owner == client]) for client in range(len(train)))
