"""The images on which models are tested, in splits whose order the data fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedray.core import Samples
from fedray.data import FederatedData
from fedray.storage.metric import VALIDATION

OWN = "test"
"""The split of each client's own test images."""


class Split(NamedTuple):
    """Images on which the models of several clients are tested in one pass.

    Attributes:
        samples: the images of all these clients, or those that they share.
        classes: the classes that predictions are chosen from.
        sizes: the number of images of each client, in the order of `samples`; None if all clients
            share the images.
    """

    samples: Samples
    classes: range
    sizes: Sequence[int] | None = None


def split_names(data: FederatedData) -> tuple[str, ...]:
    """Return the names of the splits on which the clients of these data are tested."""
    names = (*data.eval_sets, OWN)
    if data.validation is None:
        return names
    return (*names, *(VALIDATION + name for name in (*data.validation_sets, OWN)))


def splits_of(
    data: FederatedData, clients: Sequence[int], samples: Callable[[np.ndarray], Samples]
) -> list[Split]:
    """Return the splits of some clients, in the order of `split_names`.

    Args:
        data: the data of the round's phase.
        clients: the clients.
        samples: makes samples from the positions of images.
    """
    trained = range(len(data.class_names))

    def own(parts: Sequence[np.ndarray]) -> Split:
        indices = [parts[client] for client in clients]
        index = indices[0] if len(indices) == 1 else np.concatenate(indices)
        return Split(samples(index), trained, [*map(len, indices)])

    splits = []
    for sets, parts in ((data.eval_sets, data.test), (data.validation_sets, data.validation)):
        if parts is not None:
            shared = [Split(samples(each.index), each.classes) for each in sets.values()]
            splits += [*shared, own(parts)]
    return splits
