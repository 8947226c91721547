"""Compute text prototypes under prompts, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedray.language.encoders import TokenEncoder, Tokens
from fedray.language.encoders.base import BATCH
from fedray.language.prompts import insert_prompts

STORED = 3
"""Number of batches whose activations are stored for gradients; 2 GB of those of BERT-base."""


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

    The encoder processes batches of texts of about equal length, and equal texts once. For
    gradients, the activations of `STORED` batches are stored; those of further batches are computed
    again in the backward pass, with equal results.
    Outputs and gradients agree with those of one padded batch to 1e-5 of their size.

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
        UserError: if the prompts are longer than the shortest text, or than the encoder's limit.

    Paper: FedTSP section 3.3, with Eq. (4).
    """
    shortest, limit = tokens.shortest, encoder.limit if past_text else None
    if past_text:
        tokens = tokens.widened(prompts.shape[1])
    first, inverse = _distinct(tokens, k)
    per_text = prompts.unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)[first]
    tokens, embeddings = tokens[first], embeddings[first]
    batches = tokens.batches(batch)
    parts: list[Tensor] = []
    learns = prompts.requires_grad and torch.is_grad_enabled()
    for number, texts in enumerate(batches):
        some = tokens[texts]
        words, text_prompts = embeddings[texts, : some.ids.shape[1]], per_text[texts]
        inserted = insert_prompts(words, text_prompts, 1, shortest, limit)
        if number < STORED or not learns:
            parts.append(encoder.encode(inserted, some))
        else:  # a frozen encoder has no dropout, so the random state need not be preserved
            encode = encoder.encode
            parts.append(
                checkpoint(encode, inserted, some, use_reentrant=False, preserve_rng_state=False)
            )
    features = torch.cat(parts)[torch.cat(batches).argsort()]
    return mean_of_texts(features[inverse], k)


def _distinct(tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
    """Return the distinct texts of each class, and the number of every text among them."""
    texts = torch.arange(len(tokens), device=tokens.ids.device)
    content = torch.cat([(texts // k).unsqueeze(1), tokens.ids, tokens.mask.long()], dim=1)
    distinct, inverse = torch.unique(content, dim=0, return_inverse=True)
    if len(distinct) == len(texts):
        return texts, texts
    first = texts.new_full((len(distinct),), len(texts)).scatter_reduce(0, inverse, texts, "amin")
    return first, inverse
