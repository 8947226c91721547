"""The images on which models are tested, in splits whose order the data fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from fedray.core import Samples
from fedray.data import FederatedData
from fedray.storage.metric import VALIDATION

OWN = "test"
"""The split of each client's own test images."""


class HeldOut(NamedTuple):
    """The images of one split on which the model of one or several clients is tested.

    Attributes:
        passes: the images, in passes through the model: each holds those of some clients, or the
            only one those that all clients share.
        classes: the classes that predictions are chosen from.
        sizes: the number of images of each client, in the order of the images; None if all clients
            share the images.
    """

    passes: Sequence[Samples]
    classes: range
    sizes: Sequence[int] | None = None


def split_names(data: FederatedData) -> tuple[str, ...]:
    """Return the names of the splits on which the clients of these data are tested."""
    names = (*data.eval_sets, OWN)
    if data.validation is None:
        return names
    return (*names, *(VALIDATION + name for name in (*data.validation_sets, OWN)))


def splits_of(
    data: FederatedData,
    groups: Sequence[Sequence[int]],
    samples: Callable[[np.ndarray], Samples],
) -> list[HeldOut]:
    """Return the splits of some clients, in the order of `split_names`.

    Args:
        data: the data of the round's phase.
        groups: the clients, in groups that are tested in one pass.
        samples: makes samples from the positions of images.
    """
    trained = range(len(data.class_names))

    def own(parts: Sequence[np.ndarray]) -> HeldOut:
        indices = [[parts[client] for client in group] for group in groups]
        passes = [samples(np.concatenate(of_group)) for of_group in indices]
        return HeldOut(passes, trained, [*map(len, chain.from_iterable(indices))])

    splits = []
    for sets, parts in ((data.eval_sets, data.test), (data.validation_sets, data.validation)):
        if parts is not None:
            shared = [HeldOut([samples(each.index)], each.classes) for each in sets.values()]
            splits += [*shared, own(parts)]
    return splits
