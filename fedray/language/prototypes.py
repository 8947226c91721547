"""Text prototypes under prompts, with gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedray.language.encoders import TokenEncoder, Tokens
from fedray.language.encoders.base import BATCH
from fedray.language.prompts import insert_prompts

ACTIVATIONS_KEPT = 2 << 30
"""Bytes of activations that are kept at most; never more than a quarter of the free memory."""


def class_means(features: Tensor, k: int) -> Tensor:
    """Return the mean of the k features of each class: [C*k, d] gives [C, d].

    Neither the features nor the means are normalised; cosines normalise later.

    Paper: FedTSP section 3.3.
    """
    return features.reshape(-1, k, features.shape[1]).mean(1)


def text_prototypes(
    encoder: TokenEncoder,
    tokens: Tokens,
    embeddings: Tensor,
    prompts: Tensor,
    k: int,
    keep_special: bool = False,
    batch: int = BATCH,
    past_text: bool = False,
) -> Tensor:
    """Return text prototypes: the mean over j of g1(p_{c,j}), differentiable in the prompts v.

    The encoder runs over batches of texts of about equal length, and over equal texts once. For
    gradients it keeps the activations of as many batches as `ACTIVATIONS_KEPT` and the memory
    allow, and computes those of the others again in the backward pass: the same numbers either
    way. Against one padded batch, outputs and gradients agree to 1e-5 of their size.

    Args:
        encoder: frozen.
        tokens: the tokens of C*k texts, the k of a class next to each other.
        embeddings: encoder.embed(tokens) [C*k, n, d'], computed once.
        prompts: v [C, m, d'], on the same device; m = 0 for texts without prompts.
        k: texts per class.
        keep_special: keep the special first token, see `insert_prompts`.
        batch: tokens that go through the encoder at once.
        past_text: let prompts be longer than a text. They then count as part of it; an encoder that
            reads the end token reads its old position, so that a causal one (CLIP) sees no prompt
            token behind that.

    Returns:
        [C, d], not normalised.

    Raises:
        UserError: if the prompts are longer than the shortest text, or than the encoder reads.

    Paper: FedTSP section 3.3, with Eq. (4).
    """
    shortest, limit = tokens.shortest, encoder.limit if past_text else None
    if past_text:
        tokens = tokens.widened(prompts.shape[1] + int(keep_special))
    first, again = _distinct(tokens, k)
    per_text = prompts.unsqueeze(1).expand(-1, k, -1, -1).flatten(0, 1)[first]
    tokens, embeddings = tokens[first], embeddings[first]
    batches = tokens.batches(batch)
    parts: list[Tensor] = []
    remembered = _remembered(encoder, tokens, batches) if _learns(prompts) else len(batches)
    for number, texts in enumerate(batches):
        some = tokens[texts]
        words, own = embeddings[texts, : some.ids.shape[1]], per_text[texts]
        inserted = insert_prompts(words, own, 1, keep_special, shortest, limit)
        if number < remembered:
            parts.append(encoder.encode(inserted, some))
        else:
            parts.append(_recomputed(encoder, inserted, some))
    features = torch.cat(parts)[torch.cat(batches).argsort()]
    return class_means(features[again], k)


def activations(encoder: TokenEncoder, tokens: Tokens) -> float:
    """Return about how many bytes a pass over texts keeps for its gradients."""
    return float(encoder.kept_bytes * int(tokens.columns(tokens.mask).sum()))


def _learns(prompts: Tensor) -> bool:
    return prompts.requires_grad and torch.is_grad_enabled()


def _remembered(encoder: TokenEncoder, tokens: Tokens, batches: Sequence[Tensor]) -> int:
    """Return of how many batches the activations are kept: always of a single one."""
    most = room(ACTIVATIONS_KEPT, tokens.ids.device)
    sums = itertools.accumulate(activations(encoder, tokens[batch]) for batch in batches)
    return max(sum(kept <= most for kept in sums), int(len(batches) == 1))


def room(most: int, device: torch.device) -> float:
    """Return the bytes that may be kept: `most`, but at most a quarter of the free memory."""
    return min(most, _free(device) / 4)


def _free(device: torch.device) -> float:
    """Return the bytes of free memory."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)


def _recomputed(encoder: TokenEncoder, inserted: Tensor, tokens: Tokens) -> Tensor:
    """Run `encode`, and again in the backward pass; a frozen encoder has no dropout draws."""
    output: Tensor = checkpoint(
        encoder.encode, inserted, tokens, use_reentrant=False, preserve_rng_state=False
    )
    return output


def _distinct(tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
    """Return the distinct texts of each class, and for each text its number among them."""
    texts = torch.arange(len(tokens), device=tokens.ids.device)
    content = torch.cat([(texts // k).unsqueeze(1), tokens.ids, tokens.mask.long()], dim=1)
    found, again = torch.unique(content, dim=0, return_inverse=True)
    if len(found) == len(texts):
        return texts, texts
    first = texts.new_full((len(found),), len(texts)).scatter_reduce(0, again, texts, "amin")
    return first, again
