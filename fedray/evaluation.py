"""What is measured: accuracy and Dice over clients, and analyses of prototypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Correct answers of one client's model on some images; a client may have none to test on.

    Attributes:
        correct: images guessed rightly; in dense prediction pixels.
        total: images, or pixels.
        overlap: in dense prediction the pixels of each class that were guessed rightly, guessed
            so, and truly so: 3 tuples of C; else empty.
    """

    correct: int
    total: int
    overlap: tuple[tuple[int, ...], ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of correct answers."""
        return self.correct / self.total


def summarise(
    scores: Mapping[int, Score], domains: Mapping[str, Sequence[int]] | None = None
) -> dict[str, float]:
    """Summaries of the clients' accuracy on their own test splits.

    Args:
        scores: by client; those without images count in nothing.
        domains: the clients of each domain; one without test images is left out.

    Returns:
        local_accuracy: mean over clients. local_accuracy_weighted: correct of all / images of
        all (the official FedTSP code's). std, worst and best: over clients; worst10 and best10:
        means of the lowest and highest tenth; jain: Jain's fairness index. With domains:
        accuracy_<domain>, over all images of its clients, and accuracy_domains, their mean.
    """
    scores = {client: score for client, score in sorted(scores.items()) if score.total}
    accuracy = np.array([score.accuracy for score in scores.values()])
    tenth = max(1, round(len(accuracy) / 10))
    ordered = np.sort(accuracy)
    squares = float((accuracy**2).sum())
    tested = {
        name: [scores[client] for client in clients if client in scores]
        for name, clients in (domains or {}).items()
    }
    by_domain = {f"accuracy_{name}": _pooled(own) for name, own in tested.items() if own}
    if by_domain:
        by_domain["accuracy_domains"] = float(np.mean(list(by_domain.values())))
    return {
        **by_domain,
        "local_accuracy": float(accuracy.mean()),
        "local_accuracy_weighted": _pooled(list(scores.values())),
        "local_accuracy_std": float(accuracy.std()),
        "local_accuracy_worst10": float(ordered[:tenth].mean()),
        "local_accuracy_best10": float(ordered[-tenth:].mean()),
        "local_accuracy_jain": float(accuracy.sum() ** 2 / (len(accuracy) * squares))
        if squares
        else 1.0,
    }


def _pooled(scores: Sequence[Score]) -> float:
    """Correct of all / images of all."""
    return sum(s.correct for s in scores) / sum(s.total for s in scores)


def overlap(guesses: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Pixels of each class that were guessed rightly, guessed so, and truly so.

    Args:
        guesses: int64 [n].
        labels: int64 [n].
        classes: C.

    Returns:
        int64 [3, C].
    """
    right = labels[guesses == labels]
    return torch.stack([torch.bincount(p, minlength=classes) for p in (right, guesses, labels)])


def dice(
    scores: Mapping[int, Score],
    class_names: Sequence[str],
    domains: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, float]:
    """Dice coefficients 2 |guessed ∩ true| / (|guessed| + |true|) over each client's test pixels.

    Args:
        scores: by client; those without `overlap` count in nothing.
        class_names: C names, the background first.
        domains: the clients of each domain.

    Returns:
        dice_<class>: mean over the clients where the class is guessed or true anywhere; left out
        when there is none. dice: mean of these without the background's. With domains:
        dice_in_<domain>, the same mean over its clients alone. Empty without pixels.
    """
    counts = {k: np.array(s.overlap) for k, s in sorted(scores.items()) if s.overlap and s.total}
    if not counts:
        return {}
    by_client = {client: _dice(own) for client, own in counts.items()}
    means = _mean_over(list(by_client.values()))
    found = {f"dice_{name}": float(v) for name, v in zip(class_names, means, strict=True)}
    found["dice"] = _foreground(means)
    for domain, clients in (domains or {}).items():
        own = [by_client[client] for client in clients if client in by_client]
        if own:
            found[f"dice_in_{domain}"] = _foreground(_mean_over(own))
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _dice(counts: Floats) -> Floats:
    """Of counts [3, C] as `overlap` gives them; NaN for a class that is nowhere."""
    right, guessed, true = counts
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * right / (guessed + true))


def _mean_over(rows: Sequence[Floats]) -> Floats:
    """Mean of rows [C] without their NaN; NaN where every row has one."""
    return np.array([_mean(column) for column in np.stack(rows, 1)])


def _foreground(by_class: Floats) -> float:
    """Mean without class 0, the background."""
    return _mean(by_class[1:])


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def retrieval_top1(cosines: Tensor) -> float:
    """Share of texts whose nearest image prototype is their own (FedTSP supplementary I.2).

    Args:
        cosines: cos(T_c, I_j) [c, c].
    """
    own = np.arange(len(cosines))
    return float((cosines.argmax(dim=1).numpy() == own).mean())


def matrix_agreement(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Pearson and Spearman correlation of two matrices' upper triangles (supplementary I.1).

    Args:
        a: symmetric [C, C], C > 2.
        b: the same.
    """
    from scipy import stats

    upper = np.triu_indices(len(a), k=1)
    x, y = a.numpy()[upper], b.numpy()[upper]
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0, 0.0
    return float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0
