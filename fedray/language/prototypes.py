"""Insert prompts into the texts of classes, and compute text prototypes, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedray.base.errors import UserError
from fedray.language.encoders import TokenEncoder, Tokens
from fedray.language.encoders.base import BATCH

INITIAL_STD = 0.02
STORED = 3
"""Number of batches whose activations are stored for gradients; 2 GB of those of BERT-base."""


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


def insert_prompts(embeddings: Tensor, prompts: Tensor, k: int) -> Tensor:
    """Replace the first m word embeddings of each text by its class's prompt, Eq. (4).

    p_{c,j} becomes [v_{c,0..m-1}, p_{c,j}[m:]], with the same v_c for all k texts of class c. As in
    the paper and the official code, the special first token ([CLS] or [SOS]) is replaced, too.

    Args:
        embeddings: word embeddings [C*k, n, d'], with the k texts of a class in consecutive rows.
        prompts: v [C, m, d'].
        k: texts per class.

    Returns:
        [C*k, max(n, m), d'], differentiable in `prompts`.

    Paper: FedTSP Eq. (4).
    """
    m = prompts.shape[1]
    per_text = prompts.to(embeddings.dtype).repeat_interleave(k, dim=0)
    return torch.cat([per_text, embeddings[:, m:]], dim=1)


def mean_of_texts(features: Tensor, k: int) -> Tensor:
    """Return the mean of the k features of each class: [C*k, d] to [C, d].

    Neither the features nor the means are normalised, since cosines are computed later.

    Paper: FedTSP section 3.3.
    """
    return features.reshape(-1, k, features.shape[1]).mean(1)


def text_prototypes(
    encoder: TokenEncoder,
    tokens: Tokens,
    embeddings: Tensor,
    prompts: Tensor,
    k: int,
    batch: int = BATCH,
    past_text: bool = False,
) -> Tensor:
    """Return text prototypes: the mean over j of g1(p_{c,j}), differentiable in the prompts v.

    The encoder processes batches of texts of about equal length. For gradients, the activations of
    `STORED` batches are stored; those of further batches are computed again in the backward pass,
    with equal results. Outputs and gradients agree with those of one padded batch to 1e-5 of their
    size.

    Args:
        encoder: a frozen encoder.
        tokens: the tokens of C*k texts, with the k texts of a class in consecutive rows.
        embeddings: encoder.embed(tokens) [C*k, n, d'], computed once.
        prompts: v [C, m, d'], on the same device; m = 0 for texts without prompts.
        k: texts per class.
        batch: maximal number of tokens per batch.
        past_text: allow prompts that are longer than a text; all their tokens count as part of the
            text. An encoder that reads the end token reads its original position, so that a causal
            one (CLIP) ignores prompt tokens after that position.

    Returns:
        [C, d], not normalised.

    Raises:
        UserError: if the prompts are longer than the shortest text, or, with `past_text`, than the
            encoder's limit.

    Paper: FedTSP section 3.3, with Eq. (4).
    """
    _check_room(prompts.shape[1], tokens.shortest, encoder.limit if past_text else None)
    if past_text:
        tokens = tokens.widened(prompts.shape[1])
    per_text = prompts.unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)
    batches, parts = tokens.batches(batch), list[Tensor]()
    learns = prompts.requires_grad and torch.is_grad_enabled()
    for number, texts in enumerate(batches):
        some = tokens[texts]
        words = embeddings[texts, : some.ids.shape[1]]
        inserted = insert_prompts(words, per_text[texts], 1)
        if number < STORED or not learns:
            parts.append(encoder.encode(inserted, some))
        else:  # a frozen encoder has no dropout, so the random state need not be preserved
            encode = encoder.encode
            parts.append(
                checkpoint(encode, inserted, some, use_reentrant=False, preserve_rng_state=False)
            )
    return mean_of_texts(torch.cat(parts)[torch.cat(batches).argsort()], k)


def _check_room(m: int, shortest: int, limit: int | None) -> None:
    """Raise a UserError if m tokens fit neither into the texts nor, if given, into `limit`."""
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
