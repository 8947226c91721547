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
    limit: int | None = None,
) -> Tensor:
    """Replace the first m word embeddings of each text by its class's prompt, Eq. (4).

    The texts keep their length: p_{c,j} becomes [v_{c,0..m-1}, p_{c,j}[m:]], for all k texts of
    class c with the same v_c. As printed, and as the official code has it, the slot of the special
    first token ([CLS] or [SOS]) is replaced too. With `limit` a prompt may be longer than a text:
    it then replaces the whole text, its end token, and padding.

    Args:
        embeddings: word embeddings [C*k, n, d'], the k texts of a class next to each other.
        prompts: v [C, m, d']; m = 0 changes nothing.
        k: texts per class.
        keep_special: replace positions 1..m and keep position 0.
        shortest: tokens of the shortest text, where it is shorter than n because of padding.
        limit: tokens that the encoder reads at most, where prompts may go past the texts; None:
            they may not.

    Returns:
        [C*k, n, d'], of more positions where the prompts need them; differentiable in `prompts`.

    Raises:
        UserError: if the shortest text, or the encoder, has fewer tokens than are to be replaced.
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
    first = 1 if keep_special else 0
    _check_room(m, first, embeddings.shape[1] if shortest is None else shortest, limit)
    per_text = prompts.to(embeddings.dtype).unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)
    return torch.cat([embeddings[:, :first], per_text, embeddings[:, first + m :]], dim=1)


def _check_room(m: int, first: int, shortest: int, limit: int | None) -> None:
    """Check that m tokens after the first ones fit into the texts, or what the encoder reads."""
    room = shortest if limit is None else limit
    if first + m <= room:
        return
    kept = ", of which the first is kept" if first else ""
    asked = f"algorithm.prompt_length={m} is more than the"
    lower = f"set algorithm.prompt_length to {room - first} or less"
    if limit is not None:
        raise UserError(f"{asked} text encoder reads ({limit} tokens{kept}); {lower}")
    raise UserError(
        f"{asked} shortest text can hold ({shortest} tokens{kept}); {lower}, or a text.style with "
        "longer texts, or algorithm.past_text=true to write over the padding behind the texts"
    )


def initial_prompts(classes: int, m: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial prompts v [C, m, d'], each number from N(0, 0.02²).

    Args:
        classes: C.
        m: tokens per class.
        width: d', the encoder's token width.
        generator: where the numbers are drawn.

    Paper: the official FedTSP code; the paper does not say.
    """
    return torch.randn(classes, m, width, generator=generator) * INITIAL_STD
