"""Similarity of class representations (matrices of cosines) and of two models' features."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def retrieval_top1(cosines: Tensor) -> float:
    """Return the share of texts whose nearest image prototype is that of their class.

    FedTSP supplementary I.2.

    Args:
        cosines: cos(T_c, I_j) [c, c].
    """
    classes = np.arange(len(cosines))
    return float((cosines.argmax(dim=1).numpy() == classes).mean())


def matrix_agreement(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the Pearson and Spearman correlations of two matrices' upper triangles.

    FedTSP supplementary I.1. Both are 0 if a triangle is constant.

    Args:
        a: symmetric [C, C], C > 2.
        b: symmetric [C, C].
    """
    from scipy.stats import pearsonr, spearmanr  # takes a second to import

    upper = np.triu_indices(len(a), k=1)
    x, y = a.numpy()[upper], b.numpy()[upper]
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0, 0.0
    return float(pearsonr(x, y).statistic), float(spearmanr(x, y).statistic)


def centred_gram(features: Tensor) -> Tensor:
    """Return the Gram matrix K = X X^T [n, n] of features with centred columns, in float64.

    Args:
        features: features of n images [n, ...], flattened to [n, p].
    """
    x = features.flatten(1).double()
    x = x - x.mean(dim=0)
    return x @ x.T


def linear_cka(a: Tensor, b: Tensor) -> float:
    """Return the linear centred kernel alignment <K, L> / (||K|| ||L||), in [0, 1].

    It is 1 for features that are equal up to rotation and scale. With far fewer images than
    features it is biased upwards: compare values of one layer on the same images.

    Paper: Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.

    Args:
        a: K, the `centred_gram` of one model's features [n, n].
        b: L, that of the other model's features, on the same images.

    Returns:
        The alignment; 0 if either model's features are the same for all images.
    """
    norm = float(a.norm() * b.norm())
    return float((a * b).sum()) / norm if norm else 0.0
