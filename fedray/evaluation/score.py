"""How many answers were right: what clients send back from a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class TopK(NamedTuple):
    """Images whose class is among the k likeliest."""

    k: int
    correct: int


@dataclass(frozen=True)
class Score:
    """Correct answers of one client's model on some images; a client may have none to test on.

    Attributes:
        correct: images guessed rightly; in dense prediction pixels.
        total: images, or pixels.
        classes: (correct, total) of each class, in the labels' order; empty where not counted.
        eval_sets: on images that all clients share, by name.
        predicted: how often each class was guessed; empty where not counted.
        top: answers that are right among the k likeliest; None where not counted.
        validation: of the same model on the client's validation images; None where there are none.
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
        """Share of correct answers."""
        return self.correct / self.total

    @property
    def macro_f1(self) -> float:
        """Mean over the classes that have images of F1 = 2 TP / (images + predictions).

        The micro-average over all classes is the accuracy, since every image has one label and one
        prediction.
        """
        found = [
            2 * right / (images + guesses)
            for (right, images), guesses in zip(self.classes, self.predicted, strict=True)
            if images
        ]
        return sum(found) / len(found)

    @classmethod
    def by_class(
        cls, correct: Sequence[int], total: Sequence[int], predicted: Sequence[int] = ()
    ) -> Score:
        """Return the score of correct answers, images and predictions by class."""
        classes = tuple(zip(correct, total, strict=True))
        return cls(sum(correct), sum(total), classes, predicted=tuple(predicted))

    def within(self, classes: Collection[int]) -> Score:
        """Only the images of `classes`."""
        parts = [self.classes[c] for c in sorted(classes)]
        return Score(sum(right for right, _ in parts), sum(images for _, images in parts))


def pooled(scores: Sequence[Score]) -> float:
    """Correct of all / images of all."""
    return sum(s.correct for s in scores) / sum(s.total for s in scores)


def within_top(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return which labels are among the k highest logits: bool [n].

    Of equal logits those of the lower classes count as higher: ties are the same everywhere.

    Args:
        logits: [n, C], k at most C.
        labels: [n].
        k: how many.
    """
    own = logits.gather(1, labels.unsqueeze(1))
    before = torch.arange(logits.shape[1], device=logits.device) < labels.unsqueeze(1)
    ahead = (logits > own) | ((logits == own) & before)
    return ahead.sum(dim=1) < k


def overlap(guesses: Tensor, labels: Tensor, classes: int, owners: Tensor, clients: int) -> Tensor:
    """Count each client's images or pixels of each class: guessed rightly, truly so, guessed so.

    Args:
        guesses: int64 [n].
        labels: int64 [n].
        classes: C.
        owners: whose image or pixel it is, int64 [n], below `clients`.
        clients: K.

    Returns:
        int64 [K, 3, C].
    """
    right = guesses == labels
    kinds = (labels + owners * classes, guesses + owners * classes)
    cells = clients * classes
    counts = [torch.bincount(k, minlength=cells) for k in (kinds[0][right], *kinds)]
    return torch.stack(counts).view(3, clients, classes).transpose(0, 1)
