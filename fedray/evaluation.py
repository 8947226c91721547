"""What is measured: accuracy over clients, and analyses of prototypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """Correct answers of one client's model on some images; a client may have none to test on."""

    correct: int
    total: int

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


def summarise_models(scores: Mapping[str, Sequence[Sequence[Score]]]) -> dict[str, float]:
    """<name>_accuracy: the mean over models of the accuracy on all images that each was tested on.

    Args:
        scores: by name, for each model its scores on one or several clients' test splits.
    """
    means = {}
    for name, models in scores.items():
        tested = [own for own in models if any(score.total for score in own)]
        if tested:
            means[f"{name}_accuracy"] = float(np.mean([_pooled(own) for own in tested]))
    return means


def _pooled(scores: Sequence[Score]) -> float:
    """Correct of all / images of all."""
    return sum(s.correct for s in scores) / sum(s.total for s in scores)


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
