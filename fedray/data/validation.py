"""Validation images of clients whose partition leaves them none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedray.data.federated import FederatedData, local_split
from fedray.errors import UserError

__all__ = ["hold_out"]


def hold_out(
    data: FederatedData, fraction: float, rng_for: Callable[[str], np.random.Generator]
) -> FederatedData:
    """Take a share of each client's training images out for validation, at random.

    Args:
        data: the partitioned images.
        fraction: of a client's training images, between 0 and 1.
        rng_for: gives the stream for "validation".

    Raises:
        UserError: when a client would have no image left to train on or to validate on, or the
            partition already gave it some to validate on.
    """
    if data.validation is not None:
        raise UserError(
            f"data.validation_fraction={fraction:g}, but data.partition already gives every client "
            "validation images; leave data.validation_fraction out"
        )
    rng = rng_for("validation")
    splits = [
        local_split(
            part,
            rng,
            test_fraction=fraction,
            owner=f"client {client}",
            key="data.validation_fraction",
        )
        for client, part in enumerate(data.train)
    ]
    train, validation = zip(*splits, strict=True)
    return replace(data, train=train, validation=validation)
