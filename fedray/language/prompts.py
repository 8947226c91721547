"""Context tokens: where they go, and their initial values."""

from __future__ import annotations

import torch
from torch import Tensor

from fedray.errors import UserError

INITIAL_STD = 0.02


def insert_prompts(
    embeddings: Tensor,
    prompts: Tensor,
    k: int,
    keep_special: bool = False,
    shortest: int | None = None,
) -> Tensor:
    """Replace the first m word embeddings of each text by its class's prompt, Eq. (4).

    The texts keep their length: p_{c,j} becomes [v_{c,0..m-1}, p_{c,j}[m:]], for all k texts of
    class c with the same v_c. As printed, and as the official code has it, the slot of the special
    first token ([CLS] or [SOS]) is replaced too.

    Args:
        embeddings: word embeddings [C*k, n, d'], the k texts of a class next to each other.
        prompts: v [C, m, d']; m = 0 changes nothing.
        k: texts per class.
        keep_special: replace positions 1..m and keep position 0.
        shortest: tokens of the shortest text, where it is shorter than n because of padding.

    Returns:
        [C*k, n, d'], differentiable in `prompts`.

    Raises:
        UserError: when the shortest text has fewer tokens than are to be replaced.
        ValueError: when the shapes do not fit.

    Paper: FedTSP Eq. (4).
    """
    classes, m, width = prompts.shape
    if embeddings.shape[0] != classes * k or embeddings.shape[2] != width:
        raise ValueError(
            f"prompts {tuple(prompts.shape)} with k={k} do not fit embeddings "
            f"{tuple(embeddings.shape)}; expected [{classes * k}, n, {width}]"
        )
    if m == 0:
        return embeddings
    length = embeddings.shape[1] if shortest is None else shortest
    first = 1 if keep_special else 0
    if first + m > length:
        kept = ", of which the first is kept" if keep_special else ""
        raise UserError(
            f"algorithm.prompt_length={m} is more than the shortest text can hold "
            f"({length} tokens{kept}); set algorithm.prompt_length to {length - first} or less, or "
            "a text.style with longer texts"
        )
    per_text = prompts.to(embeddings.dtype).unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)
    return torch.cat([embeddings[:, :first], per_text, embeddings[:, first + m :]], dim=1)


def initial_prompts(classes: int, m: int, width: int, generator: torch.Generator) -> Tensor:
    """Initial prompts v [C, m, d'], each number from N(0, 0.02²).

    Args:
        classes: C.
        m: tokens per class.
        width: d', the encoder's token width.
        generator: where the numbers are drawn.

    Paper: the official FedTSP code; the paper does not say.
    """
    return torch.randn(classes, m, width, generator=generator) * INITIAL_STD
