"""How models answer on test images: counts by class, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of K models, each on its images of one split; in dense prediction, on pixels.

    Attributes:
        counts: for each model and class, the right answers, the images and the predictions,
            int64 [K, 3, C]; with `evaluation.top_k` a fourth row, the images whose class is among
            the k likeliest.
        clients: the client of each model [K].
    """

    counts: Counts
    clients: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def right(self) -> Counts:
        """Return the right answers by model and class [K, C]."""
        return self.counts[:, 0]

    @property
    def images(self) -> Counts:
        """Return the images by model and class [K, C]."""
        return self.counts[:, 1]

    @property
    def predicted(self) -> Counts:
        """Return the predictions by model and class [K, C]."""
        return self.counts[:, 2]

    @cached_property
    def accuracy(self) -> Floats:
        """Return the share of right answers of each model [K]."""
        return shares(self.counts)

    @property
    def pooled(self) -> float:
        """Return the share of right answers over the images of all models."""
        return float(self.right.sum() / self.images.sum())

    @property
    def macro_f1(self) -> Floats:
        """Return each model's mean F1 = 2 TP / (images + predictions) over the classes it has [K].

        The micro-average over all classes is the accuracy, because every image has one label and
        one prediction.
        """
        has_images = self.images > 0
        size = np.where(has_images, self.images + self.predicted, 1)
        f1 = np.where(has_images, 2 * self.right / size, 0.0)
        return np.asarray(f1.cumsum(axis=1)[:, -1] / has_images.sum(axis=1))

    @property
    def top_k(self) -> Floats:
        """Return the share of images whose class is among the k likeliest, by model [K]."""
        return shares(self.counts, row=3)

    def of(self, clients: Sequence[int]) -> Answers:
        """Return the answers of the models of these clients."""
        rows = np.isin(self.clients, clients)
        return Answers(self.counts[rows], self.clients[rows])


NO_ANSWERS = Answers(np.zeros((0, 3, 0), np.int64), np.zeros(0, np.int64))


def shares(counts: Counts, row: int = 0) -> Floats:
    """Return a row of counts as a share of all images, [...] for counts [..., 3, C]."""
    totals = counts.sum(axis=-1)
    return np.asarray(totals[..., row] / totals[..., 1])


def count_answers(
    logits: Tensor, labels: Tensor, owners: Tensor, models: int, top_k: int | None = None
) -> Tensor:
    """Count right answers, images (or pixels) and predictions by model and class.

    Args:
        logits: [n, C].
        labels: int64 [n].
        owners: the model of each image or pixel, int64 [n], below `models`.
        models: K.
        top_k: k of a fourth row, the images whose class is among the k likeliest.

    Returns:
        int64 [K, 3 or 4, C].
    """
    classes, first = logits.shape[1], owners * logits.shape[1]
    predictions = logits.argmax(dim=1)
    truth = labels + first
    rows = [truth[predictions == labels], truth, predictions + first]
    if top_k is not None:
        rows.append(truth[within_top(logits, labels, top_k)])
    counts = torch.stack([torch.bincount(row, minlength=models * classes) for row in rows])
    return counts.view(len(rows), models, classes).transpose(0, 1)


def within_top(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether each label is among the k highest logits: bool [n].

    Among equal logits, those of lower classes rank higher, so that ties are broken the same way
    everywhere.

    Args:
        logits: [n, C], k at most C.
        labels: [n].
        k: number of highest logits.
    """
    label_logits = logits.gather(1, labels.unsqueeze(1))
    is_lower_class = torch.arange(logits.shape[1], device=logits.device) < labels.unsqueeze(1)
    ahead = (logits > label_logits) | ((logits == label_logits) & is_lower_class)
    return ahead.sum(dim=1) < k
