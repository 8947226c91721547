"""Scores: the numbers of correct answers that clients return from a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class TopK(NamedTuple):
    """The number of images whose class is among the k likeliest."""

    k: int
    correct: int


@dataclass(frozen=True)
class Score:
    """Correct answers of one client's model on some images; a client may have no test images.

    Attributes:
        correct: correctly classified images, or pixels in dense prediction.
        total: images, or pixels.
        classes: (correct, total) of each class, in label order; empty if not counted.
        eval_sets: scores on shared evaluation sets, by name.
        predicted: the number of predictions of each class; empty if not counted.
        top: answers that are correct among the k likeliest; None if not counted.
        validation: the same model's score on the client's validation images; None if there are
            none.
    """

    correct: int
    total: int
    classes: tuple[tuple[int, int], ...] = ()
    eval_sets: Mapping[str, Score] = field(default_factory=dict)
    predicted: tuple[int, ...] = ()
    top: TopK | None = None
    validation: Score | None = None

    @property
    def accuracy(self) -> float:
        """Return the share of correct answers."""
        return self.correct / self.total

    @property
    def macro_f1(self) -> float:
        """Return the mean F1 = 2 TP / (images + predictions) over the classes that have images.

        The micro-average over all classes is the accuracy, because every image has one label and
        one prediction.
        """
        values = [
            2 * correct / (images + predictions)
            for (correct, images), predictions in zip(self.classes, self.predicted, strict=True)
            if images
        ]
        return sum(values) / len(values)

    @classmethod
    def by_class(
        cls, correct: Sequence[int], total: Sequence[int], predicted: Sequence[int] = ()
    ) -> Score:
        """Return the score for correct answers, images and predictions by class."""
        classes = tuple(zip(correct, total, strict=True))
        return cls(sum(correct), sum(total), classes, predicted=tuple(predicted))

    def within(self, classes: Collection[int]) -> Score:
        """Return the score on the images of `classes` only."""
        parts = [self.classes[c] for c in sorted(classes)]
        return Score(sum(correct for correct, _ in parts), sum(images for _, images in parts))


def pooled(scores: Sequence[Score]) -> float:
    """Return the accuracy over the images of all scores."""
    return sum(score.correct for score in scores) / sum(score.total for score in scores)


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


def overlap(
    predictions: Tensor, labels: Tensor, classes: int, owners: Tensor, clients: int
) -> Tensor:
    """Count, per client and class, the true positives, the images (or pixels), and the predictions.

    Args:
        predictions: predicted classes, int64 [n].
        labels: int64 [n].
        classes: C.
        owners: the client of each image or pixel, int64 [n], below `clients`.
        clients: K.

    Returns:
        int64 [K, 3, C].
    """
    is_correct = predictions == labels
    kinds = (labels + owners * classes, predictions + owners * classes)
    cells = clients * classes
    counts = [torch.bincount(k, minlength=cells) for k in (kinds[0][is_correct], *kinds)]
    return torch.stack(counts).view(3, clients, classes).transpose(0, 1)
