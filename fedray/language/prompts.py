"""Insert context tokens into texts, and draw their initial values."""

from __future__ import annotations

import torch
from torch import Tensor

from fedray.base.errors import UserError

INITIAL_STD = 0.02


def insert_prompts(
    embeddings: Tensor,
    prompts: Tensor,
    k: int,
    shortest: int | None = None,
    limit: int | None = None,
) -> Tensor:
    """Replace the first m word embeddings of each text by its class's prompt, Eq. (4).

    Texts keep their length: p_{c,j} becomes [v_{c,0..m-1}, p_{c,j}[m:]], with the same v_c for all
    k texts of class c. As in the paper and the official code, the special first token ([CLS] or
    [SOS]) is replaced, too. With `limit`, a prompt may be longer than a text; it then replaces the
    whole text, its end token, and padding.

    Args:
        embeddings: word embeddings [C*k, n, d'], with the k texts of a class in consecutive rows.
        prompts: v [C, m, d']; m = 0 changes nothing.
        k: texts per class.
        shortest: number of tokens of the shortest text without padding; None for n.
        limit: maximal number of tokens of the encoder, if prompts may be longer than texts; None
            if they may not.

    Returns:
        [C*k, n, d'], with more positions if the prompts need them; differentiable in `prompts`.

    Raises:
        UserError: if the prompts are longer than the shortest text, or, with `limit`, than `limit`.
        ValueError: if the shapes do not fit.

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
    _check_room(m, embeddings.shape[1] if shortest is None else shortest, limit)
    per_text = prompts.to(embeddings.dtype).unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)
    return torch.cat([per_text, embeddings[:, m:]], dim=1)


def _check_room(m: int, shortest: int, limit: int | None) -> None:
    """Check that m tokens fit into the texts, or into `limit`."""
    room = shortest if limit is None else limit
    if m <= room:
        return
    problem = f"algorithm.prompt_length={m} is more than the"
    lower = f"set algorithm.prompt_length to {room} or less"
    if limit is not None:
        raise UserError(f"{problem} text encoder reads ({limit} tokens); {lower}")
    raise UserError(
        f"{problem} shortest text can hold ({shortest} tokens); {lower}, or use a text.style "
        "with longer texts, or algorithm.past_text=true to replace padding after the texts, too"
    )


def initial_prompts(classes: int, m: int, width: int, generator: torch.Generator) -> Tensor:
    """Return initial prompts v [C, m, d'], each number drawn from N(0, 0.02²).

    Args:
        classes: C.
        m: tokens per class.
        width: d', the encoder's token width.
        generator: the source of random numbers.

    Paper: not stated; this is the official FedTSP code's initialisation.
    """
    return torch.randn(classes, m, width, generator=generator) * INITIAL_STD
