"""Data that changes while the clients learn: which images each of them holds from a round on.

The images stay what they are; a phase gives them to the clients anew. All that is drawn for a phase
comes from streams of its own, so that until the first of them a run is the one without phases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fedray.config import Component, DataConfig, Frozen, component_of, named
from fedray.data.configurable import Configurable, build
from fedray.data.federated import FederatedData, StreamFor, federate
from fedray.data.imageset import ImageSet
from fedray.data.partitions import AnyPartition, Indices, Partition, build_partition
from fedray.data.validation import hold_out
from fedray.errors import UserError
from fedray.registry import Registry


class Phase(NamedTuple):
    """The partition that holds from a round on."""

    round: int
    partition: AnyPartition


class Evolution(Configurable, ABC):
    """A change of the clients' data; made from its typed parameters, `data.evolution.*`."""

    paper: ClassVar[str] = "-"
    """The paper it is from."""

    @property
    def keeps_tests(self) -> bool:
        """Return True if images that clients were tested on stay test images."""
        return True

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """Return what follows the first partition, in the order of the rounds."""


evolutions: Registry[type[Evolution]] = Registry("data evolution", "fedray.data.evolution")


@evolutions.add
class NoEvolution(Evolution):
    """Every client keeps its images."""

    name = "none"

    def phases(self) -> Sequence[Phase]:
        return ()


class PhaseParams(Frozen):
    """One phase of `repartition`."""

    round: int = Field(ge=2, le=100_000)
    """The first round of the phase; training and tests of this round are on its images."""
    partition: Annotated[Component, named("fedtsp_dirichlet")] = component_of(
        "partition", "fedtsp_dirichlet"
    )
    """How the images are partitioned then: name and parameters, as `data.partition`."""


class RepartitionParams(Frozen):
    """Parameters of `repartition`."""

    phases: tuple[PhaseParams, ...] = Field((), max_length=1000)
    """The later phases, each with its first round and its partition, in the order of the rounds."""
    tests: Literal["kept", "redrawn"] = "kept"
    """kept: a client's test image is never a training image in another phase; redrawn: every phase
    splits its clients' images again (the official FedTSP code), so that a model is also tested on
    images on which it, or another client's model, was trained."""

    @model_validator(mode="after")
    def _in_order(self) -> RepartitionParams:
        if not self.phases:
            raise ValueError(
                "has no phases; give at least one, for example "
                "data.evolution.phases=[{round: 101, partition: {alpha: 0.5}}]"
            )
        for before, after in pairwise(self.phases):
            if after.round <= before.round:
                raise ValueError(
                    f"phases begin at round {before.round} and then at round {after.round}; put "
                    "them in the order of their rounds"
                )
        return self


@evolutions.add
class Repartition(Evolution):
    """From given rounds on, all images are partitioned again; models and server state continue.

    FedTSP's evolving data (supplementary H.1): Dir(0.1) for 100 rounds, then Dir(0.5).
    """

    name = "repartition"
    paper = "Wu et al., FedTSP, CVPR 2026, supplementary H.1"
    Params = RepartitionParams
    params: RepartitionParams

    @property
    def keeps_tests(self) -> bool:
        """Return True if `data.evolution.tests` is kept."""
        return self.params.tests == "kept"

    def phases(self) -> Sequence[Phase]:
        return [Phase(each.round, build_partition(each.partition)) for each in self.params.phases]


REDRAWN = ("partition", "split", "validation")
"""The purposes of the streams that every phase has for itself; which images there are stays."""


def federate_phases(images: ImageSet, keys: DataConfig, rng_for: StreamFor) -> FederatedData:
    """Partition images over clients, with validation images, in every phase.

    Args:
        images: what is partitioned.
        keys: how, and what follows.
        rng_for: gives the stream of a purpose.

    Raises:
        UserError: when the images cannot serve the clients in some phase.
    """
    evolution: Evolution = build(keys.evolution, "data evolution", "data.evolution")
    first = _validated(images, build_partition(keys.partition), keys, rng_for)
    later = []
    for number, phase in enumerate(evolution.phases(), 1):
        # what a few-shot protocol tests on comes from a part of all images that "split" draws
        keeps_roles = evolution.keeps_tests and isinstance(phase.partition, Partition)
        shared_split = evolution.keeps_tests and not keeps_roles
        own = [purpose for purpose in REDRAWN if not (shared_split and purpose == "split")]
        streams = _within_phase(number, own, rng_for)
        try:
            if keeps_roles:
                data = _with_roles(federate(images, phase.partition, keys, streams), first)
            else:
                data = _validated(images, phase.partition, keys, streams)
        except UserError as error:
            raise UserError(f"data.evolution, phase from round {phase.round}: {error}") from None
        later.append((phase.round, data))
    return replace(first, later=tuple(later)) if later else first


def _validated(
    images: ImageSet, partition: AnyPartition, keys: DataConfig, rng_for: StreamFor
) -> FederatedData:
    data = federate(images, partition, keys, rng_for)
    if keys.validation_fraction is None:
        return data
    return hold_out(data, keys.validation_fraction, rng_for)


def _within_phase(number: int, own: Sequence[str], rng_for: StreamFor) -> StreamFor:
    """Return the streams of a phase: its own for some purposes, else the experiment's."""
    return lambda purpose: rng_for(f"{purpose}/phase {number}" if purpose in own else purpose)


def _with_roles(data: FederatedData, first: FederatedData) -> FederatedData:
    """Keep every image's split, training, validation or test, also if its client changes."""
    held = [np.concatenate(parts) for parts in zip(data.train, data.test, strict=True)]
    tested = _every(first.test)
    validated = None if first.validation is None else _every(first.validation)
    learnt = tested if validated is None else np.concatenate([tested, validated])
    found = replace(
        data,
        train=tuple(np.sort(part[~np.isin(part, learnt)]) for part in held),
        test=tuple(np.sort(part[np.isin(part, tested)]) for part in held),
        validation=None
        if validated is None
        else tuple(np.sort(part[np.isin(part, validated)]) for part in held),
    )
    _check_roles(found)
    return found


def _every(parts: Sequence[Indices]) -> Indices:
    return np.unique(np.concatenate(parts))


def _check_roles(data: FederatedData) -> None:
    """Raise a UserError if a client has nothing to train on."""
    for client, part in enumerate(data.train):
        if not len(part):
            raise UserError(
                f"client {client} has no image to train on, since images keep what they were for; "
                "lower data.clients, raise the partition's min_samples, or set "
                "data.evolution.tests=redrawn"
            )
