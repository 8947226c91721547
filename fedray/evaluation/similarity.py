"""How alike class representations are: matrices of cosines, features of two models."""

from __future__ import annotations

import numpy as np
from torch import Tensor


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
