"""Data that changes during training: the images that each client holds in each phase.

The set of images stays the same; each phase assigns it to the clients again. Each phase draws from
separate random streams, so that a run equals one without phases until the first phase begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, DataConfig, Entry, Frozen, default_entry
from fedray.data.federated import FederatedData, StreamFor, federate
from fedray.data.imageset import ImageSet
from fedray.data.partitions import AnyPartition, Indices, Partition
from fedray.data.validation import hold_out
from fedray.registry import Registry


class Phase(NamedTuple):
    """A partition and the first round in which it holds."""

    round: int
    partition: AnyPartition


class Evolution(Entry):
    """A change of the clients' data; its typed parameters are the keys `data.evolution.*`."""

    @property
    def keeps_tests(self) -> bool:
        """Return True if test images stay test images in all phases."""
        return True

    def later(self) -> Sequence[Phase]:
        """Return the phases after the first partition, ordered by round."""
        return ()


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
        if not self.phases:
            raise ValueError(
                "has no phases; give at least one, for example "
                "data.evolution.phases=[{round: 101, partition: {alpha: 0.5}}]"
            )
        for before, after in pairwise(self.phases):
            if after.round <= before.round:
                raise ValueError(
                    f"phases begin at round {before.round} and then at round {after.round}; order "
                    "them by round"
                )
        return self

    @property
    def keeps_tests(self) -> bool:
        return self.tests == "kept"

    def later(self) -> Sequence[Phase]:
        return [Phase(phase.round, phase.partition.build()) for phase in self.phases]


REDRAWN = ("partition", "split", "validation")
"""Purposes of the random streams that differ between phases."""


def federate_phases(images: ImageSet, keys: DataConfig, rng_for: StreamFor) -> FederatedData:
    """Partition images over clients, with validation images, in every phase.

    Args:
        images: the images to partition.
        keys: the partition and its later phases.
        rng_for: returns the random stream of a purpose.

    Raises:
        UserError: if the images do not suffice for the clients in some phase.
    """
    evolution: Evolution = keys.evolution.build()
    partition: AnyPartition = keys.partition.build()
    phases = [*evolution.later()]
    if phases and evolution.keeps_tests:
        _check_kinds([partition, *(phase.partition for phase in phases)])
    first = _validated(images, partition, keys, rng_for)
    later: list[tuple[int, FederatedData]] = []
    for number, phase in enumerate(phases, 1):
        # a few-shot protocol takes its test images from a part of all images, drawn by "split"
        keeps_roles = evolution.keeps_tests and isinstance(phase.partition, Partition)
        shared_split = evolution.keeps_tests and not keeps_roles
        redrawn = [purpose for purpose in REDRAWN if not (shared_split and purpose == "split")]
        streams = _within_phase(number, redrawn, rng_for)
        try:
            if keeps_roles:
                data = _with_roles(federate(images, phase.partition, keys, streams), first)
            else:
                earlier = [first, *(data for _, data in later)] if shared_split else []
                seen = [part for data in earlier for part in data.train]
                data = _validated(images, phase.partition, keys, streams, seen)
        except UserError as error:
            raise UserError(f"data.evolution, phase from round {phase.round}: {error}") from None
        later.append((phase.round, data))
    return replace(first, later=tuple(later)) if later else first


def _validated(
    images: ImageSet,
    partition: AnyPartition,
    keys: DataConfig,
    rng_for: StreamFor,
    seen: Sequence[Indices] = (),
) -> FederatedData:
    data = federate(images, partition, keys, rng_for, seen)
    if keys.validation_fraction is None:
        return data
    return hold_out(data, keys.validation_fraction, rng_for)


def _within_phase(number: int, redrawn: Sequence[str], rng_for: StreamFor) -> StreamFor:
    """Return the streams of a phase: its own ones for `redrawn` purposes, else the first ones."""
    return lambda purpose: rng_for(f"{purpose}/phase {number}" if purpose in redrawn else purpose)


def _with_roles(data: FederatedData, first: FederatedData) -> FederatedData:
    """Keep every image's role (training, validation or test), even if its client changes."""
    whole = [np.concatenate(parts) for parts in zip(data.train, data.test, strict=True)]
    tested = _union(first.test)
    validated = tested[:0] if first.validation is None else _union(first.validation)
    held_out = np.concatenate([tested, validated])

    def share(positions: Indices, *, invert: bool = False) -> tuple[Indices, ...]:
        return tuple(np.sort(part[np.isin(part, positions, invert=invert)]) for part in whole)

    repartitioned = replace(
        data,
        train=share(held_out, invert=True),
        test=share(tested),
        validation=None if first.validation is None else share(validated),
    )
    for client, part in enumerate(repartitioned.train):
        if not len(part):
            raise UserError(
                f"client {client} has no training image, because test and validation images keep "
                "their roles; lower data.clients, or set data.evolution.tests=redrawn"
            )
    return repartitioned


def _check_kinds(partitions: Sequence[AnyPartition]) -> None:
    """Refuse partitions beside few-shot protocols, whose unused test images they would train on."""
    few_shot = [one.name for one in partitions if not isinstance(one, Partition)]
    if few_shot and len(few_shot) < len(partitions):
        raise UserError(
            f"data.evolution: {few_shot[0]} draws few images and other phases partition all of "
            "them, so that test images cannot keep their role; set data.evolution.tests=redrawn"
        )


def _union(parts: Sequence[Indices]) -> Indices:
    return np.unique(np.concatenate(parts))
