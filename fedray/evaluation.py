"""What is measured: accuracy and Dice over clients and classes, and analyses of prototypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
        classes: (correct, total) of each class, in the labels' order; empty where not counted.
        exams: on images that all clients share, by name.
        predicted: how often each class was guessed; empty where not counted.
    """

    correct: int
    total: int
    classes: tuple[tuple[int, int], ...] = ()
    exams: Mapping[str, Score] = field(default_factory=dict)
    predicted: tuple[int, ...] = ()

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
        """Of the correct answers, the images and the predictions of each class."""
        classes = tuple(zip(correct, total, strict=True))
        return cls(sum(correct), sum(total), classes, predicted=tuple(predicted))

    def within(self, classes: Collection[int]) -> Score:
        """Only the images of `classes`."""
        parts = [self.classes[c] for c in sorted(classes)]
        return Score(sum(right for right, _ in parts), sum(images for _, images in parts))


def summarise(
    scores: Mapping[int, Score],
    domains: Mapping[str, Sequence[int]] | None = None,
    majority: Sequence[Collection[int]] | None = None,
) -> dict[str, float]:
    """Summaries of the clients' accuracy on their own test splits.

    Args:
        scores: by client; those without images count in nothing.
        domains: the clients of each domain; one without test images is left out.
        majority: each client's majority classes (`majority_classes`); its others are minority.

    Returns:
        local_accuracy: mean over clients; local_macro_f1 too, where predictions are counted.
        local_accuracy_weighted: correct of all / images of all (the official FedTSP code's). std,
        worst and best: over clients; worst10 and best10: means of the lowest and highest tenth;
        jain: Jain's fairness index. With domains: accuracy_<domain>, over all images of its
        clients, and accuracy_domains, their mean. With majority: accuracy_majority and
        accuracy_minority, over all images of all clients, since a client may have few images of its
        minority classes; each where there are such images. With exams: accuracy_<exam>, mean over
        clients; of base and novel classes also accuracy_hm and accuracy_cm (`harmonic_mean`; CM =
        (local + HM) / 2, FedMGP section 5).
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
        **(_by_size(scores, majority) if majority else {}),
        **_exams(scores, float(accuracy.mean())),
        **_macro_f1(scores),
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


def harmonic_mean(base: float, novel: float) -> float:
    """HM = 2 B N / (B + N) of the accuracies on base and novel classes; 0 where both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def _exams(scores: Mapping[int, Score], local: float) -> dict[str, float]:
    """Accuracies on images that all clients share, as means over clients."""
    names = next(iter(scores.values())).exams
    found = {
        f"accuracy_{name}": float(np.mean([own.exams[name].accuracy for own in scores.values()]))
        for name in names
    }
    if {"accuracy_base", "accuracy_novel"} <= found.keys():
        found["accuracy_hm"] = harmonic_mean(found["accuracy_base"], found["accuracy_novel"])
        found["accuracy_cm"] = (local + found["accuracy_hm"]) / 2
    return found


def _macro_f1(scores: Mapping[int, Score]) -> dict[str, float]:
    """The mean over clients of the macro-averaged F1, where predictions are counted."""
    if not all(score.predicted for score in scores.values()):
        return {}
    return {"local_macro_f1": float(np.mean([score.macro_f1 for score in scores.values()]))}


def majority_classes(counts: np.ndarray) -> list[frozenset[int]]:
    """Each client's majority classes: those it has more images of than n_i / C, its mean.

    FedGLCL Fig. 1b splits classes by such a threshold and does not say which. A class that a
    client has no image of is a minority class; a client with equal counts has no majority.

    Args:
        counts: n_{i,c}, training images by client and class [N, C].
    """
    above = counts > counts.mean(axis=1, keepdims=True)
    return [frozenset(np.flatnonzero(row).tolist()) for row in above]


def _by_size(scores: Mapping[int, Score], majority: Sequence[Collection[int]]) -> dict[str, float]:
    """Accuracy on the clients' majority and minority classes, where they are counted."""
    counted = {client: score for client, score in scores.items() if score.classes}
    large = [score.within(majority[client]) for client, score in counted.items()]
    small = [
        score.within(set(range(len(score.classes))) - set(majority[client]))
        for client, score in counted.items()
    ]
    parts = {"accuracy_majority": large, "accuracy_minority": small}
    return {
        name: _pooled(found) for name, found in parts.items() if any(score.total for score in found)
    }


def _pooled(scores: Sequence[Score]) -> float:
    """Correct of all / images of all."""
    return sum(s.correct for s in scores) / sum(s.total for s in scores)


def overlap(guesses: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Images or pixels of each class that were guessed rightly, are truly so, and were guessed so.

    Args:
        guesses: int64 [n].
        labels: int64 [n].
        classes: C.

    Returns:
        int64 [3, C].
    """
    right = labels[guesses == labels]
    return torch.stack([torch.bincount(p, minlength=classes) for p in (right, labels, guesses)])


def dice(
    scores: Mapping[int, Score],
    class_names: Sequence[str],
    domains: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, float]:
    """Dice coefficients 2 |guessed ∩ true| / (|guessed| + |true|) over each client's test pixels.

    Args:
        scores: by client, of pixels.
        class_names: C names, the background first; empty where nothing is dense.
        domains: the clients of each domain.

    Returns:
        dice_<class>: mean over the clients where the class is guessed or true anywhere; left out
        when there is none. dice: mean of these without the background's. With domains:
        dice_in_<domain>, the same mean over its clients alone. Empty without pixels.
    """
    if not class_names:
        return {}
    by_client = {client: _dice(own) for client, own in sorted(scores.items()) if own.total}
    if not by_client:
        return {}
    means = _mean_over(list(by_client.values()))
    found = {f"dice_{name}": float(v) for name, v in zip(class_names, means, strict=True)}
    found["dice"] = _foreground(means)
    for domain, clients in (domains or {}).items():
        own = [by_client[client] for client in clients if client in by_client]
        if own:
            found[f"dice_in_{domain}"] = _foreground(_mean_over(own))
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _dice(score: Score) -> Floats:
    """By class [C]; NaN for a class that is nowhere."""
    right, true = np.array(score.classes).T
    guessed = np.array(score.predicted)
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


def centred_gram(features: Tensor) -> Tensor:
    """K = X X^T of features X whose columns are centred [n, n], in double precision.

    Args:
        features: of n images [n, ...], flattened to [n, p].
    """
    x = features.flatten(1).double()
    x = x - x.mean(dim=0)
    return x @ x.T


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Linear centred kernel alignment <K, L> / (||K|| ||L||), in [0, 1].

    1 for features that are equal up to rotation and scale. With far fewer images than features it
    is biased upwards: compare values of one layer on the same images.

    Paper: Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.

    Args:
        a: K, `centred_gram` of one model's features [n, n].
        b: L, likewise of another's, on the same images.

    Returns:
        0 where either model's features are the same for all images.
    """
    norm = float(a.norm() * b.norm())
    return float((a * b).sum()) / norm if norm else 0.0


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else 0.0
