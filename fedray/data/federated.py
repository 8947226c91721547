"""A federation's data: one image set, and which of its images each client trains and tests on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fedray.config import DataConfig
from fedray.data.imageset import TEST, TRAIN, VALIDATION, Domains, ImageSet
from fedray.data.partitions import (
    Annotations,
    AnyPartition,
    FewShotProtocol,
    Indices,
    Partition,
    Pools,
)
from fedray.errors import UserError

StreamFor: TypeAlias = Callable[[str], np.random.Generator]
"""Gives the random stream of a purpose."""


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Test images that every client's model is evaluated on, with the classes to choose from.

    Attributes:
        index: positions of the images, sorted.
        classes: the class subset that a prediction is chosen from; it holds all their labels.
    """

    index: Indices
    classes: range


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What each client trains, tests and validates on; nothing is copied out of the images.

    Attributes:
        images: all images; usually mapped from disk.
        train: N sorted int64 arrays of positions in `images`, what each client trains on.
        test: likewise, what each client tests on.
        eval_sets: shared evaluation sets by name, which all clients' models are tested on too.
        base: how many classes, the first ones, are trained on; None for all.
        validation: likewise, what each client validates on; None if no client does.
        later: the data that replaces this one from a round on, by round (`data.evolution`).
    """

    images: ImageSet
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    eval_sets: Mapping[str, EvalSet] = field(default_factory=dict)
    base: int | None = None
    validation: tuple[Indices, ...] | None = None
    later: tuple[tuple[int, FederatedData], ...] = ()

    @property
    def phases(self) -> list[tuple[int, FederatedData]]:
        """Return each phase's first round and its data; the first begins before round 1."""
        return [(0, self), *self.later]

    def at(self, round_: int) -> FederatedData:
        """Return the data that holds in a round."""
        return [data for first, data in self.phases if first <= round_][-1]

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.train)

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names of the classes that are trained on; their order is the labels'."""
        return self.images.class_names[: self.base]

    @property
    def novel_names(self) -> tuple[str, ...]:
        """Names of the novel classes, which are only evaluated on; their labels follow."""
        return () if self.base is None else self.images.class_names[self.base :]

    @cached_property
    def used(self) -> Indices:
        """Positions of all images that some client trains, tests or validates on, sorted."""
        shared = [eval_set.index for eval_set in self.eval_sets.values()]
        then = [data.used for _, data in self.later]
        return np.unique(
            np.concatenate([part for parts in (*self._parts, shared, then) for part in parts])
        )

    @cached_property
    def validation_sets(self) -> Mapping[str, EvalSet]:
        """The counterparts of the shared evaluation sets among validation images, by name.

        All clients' validation images of the set's classes and, of a domain's set, of its domain.
        Novel classes have none, because nobody trains on them.
        """
        if self.validation is None:
            return {}
        everybody = np.unique(np.concatenate(self.validation))
        labels, domains = np.asarray(self.images.labels)[everybody], self.images.domains
        found = {}
        for name, shared in self.eval_sets.items():
            fits = np.isin(labels, shared.classes)
            if name.startswith(DOMAIN) and domains is not None:
                domain = domains.names.index(name.removeprefix(DOMAIN))
                fits &= domains.ids[everybody] == domain
            if fits.any():
                found[name] = EvalSet(everybody[fits], shared.classes)
        return found

    def client_domains(self) -> dict[str, list[int]] | None:
        """Return the clients of each domain; None if a client has images of several domains."""
        if self.images.domains is None:
            return None
        names, ids = self.images.domains.names, self.images.domains.ids
        clients: dict[str, list[int]] = {}
        for client, train in enumerate(self.train):
            found = np.unique(ids[train])
            if len(found) > 1:
                return None
            clients.setdefault(names[int(found[0])], []).append(client)
        return clients

    def histogram(self) -> Indices:
        """Return all images by client and class: int64 [N, C]."""
        counts: Indices = np.sum([self._count(parts) for parts in self._parts], axis=0)
        return counts

    def train_histogram(self) -> Indices:
        """Return the training images by client and class: int64 [N, C]."""
        return self._count(self.train)

    def _count(self, parts: Sequence[Indices]) -> Indices:
        labels, classes = self.images.labels, len(self.class_names)
        return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])

    @property
    def _parts(self) -> tuple[tuple[Indices, ...], ...]:
        return (self.train, self.test, *([] if self.validation is None else [self.validation]))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of every client's indices and labels, in client order.

        With later phases, also of their first rounds and hashes.
        """
        digest = hashlib.sha256()
        for parts in zip(*self._parts, strict=True):
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part.astype("<i8").tobytes())
                digest.update(self.images.labels[part].astype("<i8").tobytes())
        for first, data in self.later:
            digest.update(first.to_bytes(8, "little"))
            digest.update(bytes.fromhex(data.sha256))
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """Return the partition and its later phases as plain data, for `partition.json`."""
        return {
            "sha256": self.sha256,
            "source": self.images.source,
            "images_sha256": self.images.sha256,
            "images": len(self.images),
            "class_names": list(self.class_names),
            **self._clients(),
            **({"later": self._later()} if self.later else {}),
        }

    def _later(self) -> list[dict[str, Any]]:
        return [{"round": first, **data._clients()} for first, data in self.later]

    def _clients(self) -> dict[str, Any]:
        """Return what each client holds, as numbers and as positions."""
        histogram = self.histogram()
        parts = self._parts
        named = dict(zip(("train", "test", "validation")[: len(parts)], parts, strict=True))
        clients = [
            {"client": i, **{name: part[i].tolist() for name, part in named.items()}}
            for i in range(self.clients)
        ]
        return {
            "sizes": histogram.sum(1).tolist(),
            **{f"{name}_sizes": [len(part) for part in each] for name, each in named.items()},
            "histogram": histogram.tolist(),
            "clients": clients,
        }


def local_split(
    indices: Indices,
    rng: np.random.Generator,
    *,
    test_fraction: float = 0.25,
    owner: str = "a client",
) -> tuple[Indices, Indices]:
    """Split one client's images at random, not stratified (FedTSP: 75 % and 25 %).

    Sizes are those of scikit-learn's `train_test_split`: the test part is rounded up.

    Args:
        indices: int64 [n].
        rng: random stream.
        test_fraction: share of the test part, between 0 and 1.
        owner: whose images they are, for the message.

    Returns:
        Training and test indices, both sorted.

    Raises:
        UserError: when either part would be empty.
    """
    n = len(indices)
    held = math.ceil(round(n * test_fraction, 6))
    if not 0 < held < n:
        raise UserError(
            f"{owner} has {n} image{'s' * (n != 1)}, of which data.test_fraction="
            f"{test_fraction:g} takes {held} for its test; both parts need one: lower "
            "data.clients, raise data.partition.min_samples or change data.test_fraction"
        )
    order = rng.permutation(indices)
    return np.sort(order[held:]), np.sort(order[:held])


def federate(
    images: ImageSet, partition: AnyPartition, keys: DataConfig, rng_for: StreamFor
) -> FederatedData:
    """Partition images over clients, and define what each of them tests on.

    Official validation images are left to the few-shot protocols, which validate on them.

    With `test=local` the official training and test images are pooled and partitioned, and each
    client keeps a part of its images for testing (FedTSP supplementary C.4; HtFLlib). With
    `test=official` only training images are partitioned, and the official test images are divided
    by the clients' training counts of each class and domain: the clients' tests add up to the
    official one. A few-shot protocol draws from the official training and test images; with
    `test=local`, from a random part of both and the `test_fraction` that is left.

    Args:
        images: what is partitioned.
        partition: how, with its parameters (`build_partition`).
        keys: how many clients there are, what they test on and how images are thinned out before:
            first `samples`, then `imbalance`, then `shots`.
        rng_for: gives the stream for "subset", "shots", "imbalance", "partition", "split" and
            "test_subset".

    Raises:
        UserError: when the images cannot serve the clients.
    """
    selection = _Selection(images, keys, rng_for)
    if isinstance(partition, FewShotProtocol):
        _refuse_thinning(partition, keys)
        pools = selection.pools()
        labels, rng = np.asarray(images.labels), rng_for("partition")
        train, validation, test = partition.splits(labels, pools, keys.clients, rng)
        data = FederatedData(images, tuple(train), tuple(test), validation=tuple(validation))
        return with_every_domain(data, pools.test) if keys.every_domain else data
    base = base_classes(len(images.class_names)) if keys.novel else None
    chosen = selection.training((TRAIN, TEST) if keys.test == "local" else (TRAIN,), base)
    chosen = _thinned(images.labels, chosen, keys, rng_for)
    parts = _partitioned(images, chosen, partition, keys.clients, rng_for("partition"))
    if keys.test == "local":
        return _with_local_tests(images, parts, keys.test_fraction, rng_for("split"))
    data = _with_official_tests(images, parts, selection.official_test(), base)
    tested = np.sort(np.concatenate(data.test))
    return with_every_domain(data, tested) if keys.every_domain else data


@dataclass(frozen=True, eq=False)
class _Selection:
    """Draws the images that are used at all; attributes as `federate`'s arguments."""

    images: ImageSet
    keys: DataConfig
    rng_for: StreamFor

    def training(self, origins: tuple[int, ...], base: int | None = None) -> Indices:
        """Return `samples` of the images of these official splits, of the first `base` classes."""
        pool = _positions(self.images, *origins)
        if base is not None:
            pool = pool[np.asarray(self.images.labels)[pool] < base]
        return self._subset(pool, self.keys.samples, "subset", "data.samples")

    def official_test(self) -> Indices:
        """Return `test_samples` of the official test images.

        Raises:
            UserError: when there are none, or too few.
        """
        official = _positions(self.images, TEST)
        if not len(official):
            raise UserError(
                f"data.test=official, but {self.images.source} has no official test images; "
                "set data.test=local"
            )
        return self._subset(official, self.keys.test_samples, "test_subset", "data.test_samples")

    def pools(self) -> Pools:
        """Return the images that a few-shot protocol draws from."""
        validation = _positions(self.images, VALIDATION)
        if self.keys.test == "official":
            return Pools(self.training((TRAIN,)), self.official_test(), validation)
        train, held = local_split(
            self.training((TRAIN, TEST)),
            self.rng_for("split"),
            test_fraction=self.keys.test_fraction,
            owner=self.images.source,
        )
        return Pools(train, held, validation)

    def _subset(self, pool: Indices, count: int | None, purpose: str, key: str) -> Indices:
        """Return a number of images of the pool, drawn at random and sorted."""
        if count is None:
            return pool
        if count > len(pool):
            raise UserError(
                f"{key}={count}, but {self.images.source} has {len(pool)} images; "
                f"lower {key} or leave it out"
            )
        return np.sort(self.rng_for(purpose).permutation(pool)[:count])


def _refuse_thinning(protocol: FewShotProtocol, keys: DataConfig) -> None:
    thinned = {"imbalance": keys.imbalance > 1, "shots": keys.shots, "novel": keys.novel}
    for key in (key for key, asked in thinned.items() if asked):
        raise UserError(
            f"data.{key} thins out what is partitioned, but data.partition={protocol.name} draws "
            f"few images for each client itself; leave data.{key} out"
        )


def _thinned(labels: Indices, chosen: Indices, keys: DataConfig, rng_for: StreamFor) -> Indices:
    """Return the chosen positions that a long tail, then a number of shots, leave."""
    labels = np.asarray(labels)
    if keys.imbalance > 1:
        chosen = chosen[long_tailed(labels[chosen], keys.imbalance, rng_for("imbalance"))]
    if keys.shots is not None:
        chosen = chosen[few_shots(labels[chosen], keys.shots, rng_for("shots"))]
    return chosen


def _partitioned(
    images: ImageSet,
    chosen: Indices,
    partition: Partition,
    clients: int,
    rng: np.random.Generator,
) -> tuple[Indices, ...]:
    """Return each client's part of the chosen positions."""
    domains = images.domains
    if domains is not None:
        domains = Domains(domains.names, domains.ids[chosen])
    annotations = Annotations(np.asarray(images.labels)[chosen], domains)
    return tuple(chosen[part] for part in partition.split(annotations, clients, rng))


def _with_local_tests(
    images: ImageSet, parts: Sequence[Indices], test_fraction: float, rng: np.random.Generator
) -> FederatedData:
    """Let every client keep a random share of its images for its test."""
    splits = [
        local_split(part, rng, test_fraction=test_fraction, owner=f"client {client}")
        for client, part in enumerate(parts)
    ]
    train, test = zip(*splits, strict=True)
    return FederatedData(images, train, test)


def _with_official_tests(
    images: ImageSet, train: tuple[Indices, ...], official: Indices, base: int | None
) -> FederatedData:
    """Divide the official test; with `base` classes, its images of these, and share all."""
    if base is None:
        return FederatedData(images, train, _partition_test(images, train, official))
    labels = np.asarray(images.labels)[official]
    subsets = {"base": range(base), "novel": range(base, len(images.class_names))}
    eval_sets = {
        name: EvalSet(official[np.isin(labels, classes)], classes)
        for name, classes in subsets.items()
    }
    test = _partition_test(images, train, eval_sets["base"].index)
    return FederatedData(images, train, test, eval_sets, base)


DOMAIN = "domain:"
"""What begins the names of the evaluation sets of `with_every_domain`."""


def with_every_domain(data: FederatedData, tested: Indices) -> FederatedData:
    """Return the data with the test images of each domain as evaluation sets for all clients.

    Args:
        data: the partitioned images.
        tested: positions of all test images, sorted.

    Raises:
        UserError: when the images have no domains.
    """
    domains = data.images.domains
    if domains is None:
        raise UserError(
            f"data.every_domain tests everybody on every domain, but {data.images.source} knows no "
            "domains; use data with a folder or a column `domain` for each, or leave it out"
        )
    classes = range(len(data.class_names))
    sets = {
        f"{DOMAIN}{name}": EvalSet(tested[domains.ids[tested] == i], classes)
        for i, name in enumerate(domains.names)
        if (domains.ids[tested] == i).any()
    }
    return replace(data, eval_sets={**data.eval_sets, **sets})


GLOBAL_TEST = "everybody"
"""The evaluation set of all clients' test images."""


def with_global_test(data: FederatedData) -> FederatedData:
    """Have every client's model tested on all clients' test images too, in every phase."""
    everybody = EvalSet(np.unique(np.concatenate(data.test)), range(len(data.class_names)))
    return replace(
        data,
        eval_sets={**data.eval_sets, GLOBAL_TEST: everybody},
        later=tuple((first, with_global_test(phase)) for first, phase in data.later),
    )


def _positions(images: ImageSet, *origins: int) -> Indices:
    """Return the positions of the images of these official splits, sorted."""
    return np.flatnonzero(np.isin(images.origin, origins)).astype(np.int64, copy=False)


def base_classes(classes: int) -> int:
    """Return the number of base classes: the first half, rounded up (CoOp's base-to-new split)."""
    return math.ceil(classes / 2)


def few_shots(labels: Indices, shots: int, rng: np.random.Generator) -> Indices:
    """Draw at most `shots` images of each class, without replacement.

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


def _partition_test(
    images: ImageSet, train: Sequence[Indices], official: Indices
) -> tuple[Indices, ...]:
    """Divide test images by the clients' training counts of each domain and class.

    Those of a class that no client trains on in a domain go to the domain's clients in proportion
    to their images there; those of a domain that no client has, to all clients in proportion to
    their images.
    """
    labels = np.asarray(images.labels).astype(np.int64)
    ids = None if images.domains is None else images.domains.ids.astype(np.int64)
    domain = np.zeros_like(labels) if ids is None else ids
    kind = domain * len(images.class_names) + labels
    owner = np.empty(len(official), np.int64)
    for k in np.unique(kind[official]):
        members = np.flatnonzero(kind[official] == k)
        counts = np.array([(kind[part] == k).sum() for part in train])
        if not counts.any():
            here = domain[official[members[0]]]
            counts = np.array([(domain[part] == here).sum() for part in train])
        if not counts.any():
            counts = np.array([len(part) for part in train])
        ends = np.floor(np.cumsum(counts) / counts.sum() * len(members) + 0.5).astype(np.int64)
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    return tuple(np.sort(official[owner == client]) for client in range(len(train)))
