"""Data that changes during training: the images that each client holds in each phase.

The set of images stays the same; each phase assigns it to the clients again. Each phase draws from
separate random streams, so that a run equals one without phases until the first phase begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, DataConfig, Entry, Frozen, default_entry
from fedray.config.registry import Registry
from fedray.data.federated import FederatedData, StreamFor, federate
from fedray.data.imageset import ImageSet
from fedray.data.partitions import Indices, Partition
from fedray.data.partitions.dominant_class import DominantClass
from fedray.data.validation import hold_out


class Evolution(Entry):
    """A change of the clients' data; its typed parameters are the keys `data.evolution.*`."""


evolutions: Registry[type[Evolution]] = Registry("data evolution", "fedray.data.evolution")


@evolutions.add
class NoEvolution(Evolution):
    """Every client keeps its images."""

    name = "none"


class PhaseParams(Frozen):
    """One phase of `repartition`."""

    round: int = Field(ge=2, le=100_000)
    """The first round of the phase; this round already trains and tests on its images."""
    partition: Annotated[Component, Chosen("partition", "fedtsp_dirichlet")] = default_entry(
        "fedtsp_dirichlet"
    )
    """The partition of the phase: name and parameters, as in `data.partition`."""


@evolutions.add
class Repartition(Evolution):
    """From given rounds on, all images are partitioned again; models and server state continue.

    FedTSP's evolving data (supplementary H.1): Dir(0.1) for 100 rounds, then Dir(0.5).
    """

    name = "repartition"
    paper = "Wu et al., FedTSP, CVPR 2026, supplementary H.1"

    phases: tuple[PhaseParams, ...] = Field((), max_length=1000)
    """The later phases, each with its first round and its partition, ordered by round."""
    tests: Literal["kept", "redrawn"] = "kept"
    """kept: a client's test image is never a training image in another phase; redrawn: every phase
    splits its clients' images again (the official FedTSP code), so that models are also tested on
    images that they, or other clients' models, were trained on."""

    @model_validator(mode="after")
    def _in_order(self) -> Repartition:
        rounds = [phase.round for phase in self.phases]
        if not rounds or rounds != sorted({*rounds}):
            raise ValueError(
                f"phases begin at the rounds {rounds}; give at least one, ordered by round, for "
                "example data.evolution.phases=[{round: 101, partition: {alpha: 0.5}}]"
            )
        return self


REDRAWN = ("partition", "split", "validation")
"""Purposes of the random streams that differ between phases."""


def federate_phases(images: ImageSet, keys: DataConfig, rng_for: StreamFor) -> FederatedData:
    """Partition images over clients, with validation images, in every phase.

    Raises:
        UserError: if the images do not suffice for the clients in some phase, or a phase draws few
            shots, whose unused test images other phases would train on.
    """
    evolution: Evolution = keys.evolution.build()
    partition: Partition | DominantClass = keys.partition.build()
    first = _validated(images, partition, keys, rng_for)
    if not isinstance(evolution, Repartition):
        return first
    partitions = [phase.partition.build() for phase in evolution.phases]
    for one in (partition, *partitions):
        if not isinstance(one, Partition):
            raise UserError(
                f"data.evolution: {one.name} draws few images, so that test images cannot keep "
                "their role; choose partitions that assign every image to a client"
            )
    later = []
    for number, (phase, then) in enumerate(zip(evolution.phases, partitions, strict=True), 1):
        streams = _within_phase(number, rng_for)
        try:
            if evolution.tests == "kept":
                data = _with_roles(federate(images, then, keys, streams), first)
            else:
                data = _validated(images, then, keys, streams)
        except UserError as error:
            raise UserError(f"data.evolution, phase from round {phase.round}: {error}") from None
        later.append((phase.round, data))
    return replace(first, later=tuple(later))


def _validated(
    images: ImageSet, partition: Partition | DominantClass, keys: DataConfig, rng_for: StreamFor
) -> FederatedData:
    data = federate(images, partition, keys, rng_for)
    if keys.validation_fraction is None:
        return data
    return hold_out(data, keys.validation_fraction, rng_for)


def _within_phase(number: int, rng_for: StreamFor) -> StreamFor:
    """Return the streams of a phase: its own ones for `REDRAWN` purposes, else the first ones."""
    return lambda purpose: rng_for(f"{purpose}/phase {number}" if purpose in REDRAWN else purpose)


def _with_roles(data: FederatedData, first: FederatedData) -> FederatedData:
    """Keep every image's role (training, validation or test), even if its client changes."""
    whole = [np.concatenate(parts) for parts in zip(data.train, data.test, strict=True)]

    def share(positions: Indices, *, invert: bool = False) -> tuple[Indices, ...]:
        return tuple(np.sort(part[np.isin(part, positions, invert=invert)]) for part in whole)

    tested = np.concatenate(first.test)
    validated = tested[:0] if first.validation is None else np.concatenate(first.validation)
    train = share(np.concatenate([tested, validated]), invert=True)
    if not all(map(len, train)):
        raise UserError(
            "a client has no training image, because test and validation images keep their roles; "
            "lower data.clients, or set data.evolution.tests=redrawn"
        )
    validation = None if first.validation is None else share(validated)
    return replace(data, train=train, test=share(tested), validation=validation)
