"""Text prototypes: under prompts with gradients, or frozen and out of a cache."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedray.files import cache_folder
from fedray.integrity import check_or_make
from fedray.language.encoders import EncoderChoice, TextEncoder, Tokens
from fedray.language.encoders.base import BATCH
from fedray.language.prompts import insert_prompts

ACTIVATIONS_KEPT = 2 << 30
"""Bytes of activations that are kept at most; never more than a quarter of the free memory."""
_FORMAT = 2
_FILE = "embeddings.npy"
_log = logging.getLogger(__name__)


def class_means(features: Tensor, k: int) -> Tensor:
    """The mean of each class's k features: [C*k, d] gives [C, d].

    Neither the features nor the means are normalised; cosines normalise later.

    Paper: FedTSP section 3.3.
    """
    return features.reshape(-1, k, features.shape[1]).mean(1)


def text_prototypes(
    encoder: TextEncoder,
    tokens: Tokens,
    embeddings: Tensor,
    prompts: Tensor,
    k: int,
    keep_special: bool = False,
    batch: int = BATCH,
    past_text: bool = False,
) -> Tensor:
    """Text prototypes under prompts: the mean over j of g1(p_{c,j}), differentiable in v.

    The encoder runs over batches of texts of about equal length, and over equal texts once. For
    gradients it keeps the activations of as many batches as `ACTIVATIONS_KEPT` and the memory
    allow, and computes those of the others again in the backward pass: the same numbers either
    way. Against one padded batch, outputs and gradients agree to 1e-5 of their size.

    Args:
        encoder: frozen.
        tokens: the tokens of C*k texts, the k of a class next to each other.
        embeddings: encoder.embed(tokens) [C*k, n, d'], computed once.
        prompts: v [C, m, d'], on the same device; m = 0 for the texts as they are.
        k: texts per class.
        keep_special: keep the special first token, see `insert_prompts`.
        batch: tokens that go through the encoder at once.
        past_text: let prompts be longer than a text. They then count as part of it; an encoder that
            reads the end token reads its old position, so that a causal one (CLIP) sees no prompt
            token behind that.

    Returns:
        [C, d], not normalised.

    Raises:
        UserError: when the prompts are longer than the shortest text, or than the encoder reads.

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
            parts.append(_twice(encoder, inserted, some))
    features = torch.cat(parts)[torch.cat(batches).argsort()]
    return class_means(features[again], k)


def activations(encoder: TextEncoder, tokens: Tokens) -> float:
    """Bytes that a pass over these texts keeps for its gradients; infinite where nobody knows."""
    each = encoder.kept_bytes
    return math.inf if each is None else float(each * int(tokens.columns(tokens.mask).sum()))


def _learns(prompts: Tensor) -> bool:
    return prompts.requires_grad and torch.is_grad_enabled()


def _remembered(encoder: TextEncoder, tokens: Tokens, batches: Sequence[Tensor]) -> int:
    """Of how many batches the activations are kept: of a single one always."""
    most = room(ACTIVATIONS_KEPT, tokens.ids.device)
    sums = itertools.accumulate(activations(encoder, tokens[batch]) for batch in batches)
    return max(sum(kept <= most for kept in sums), int(len(batches) == 1))


def room(most: int, device: torch.device) -> float:
    """Bytes that may be kept: so many, but never more than a quarter of the free memory."""
    return min(most, _free(device) / 4)


def _free(device: torch.device) -> float:
    """Bytes of memory that nobody uses."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)


def _twice(encoder: TextEncoder, inserted: Tensor, tokens: Tokens) -> Tensor:
    """`encode`, again in the backward pass; frozen, so that there are no dropout draws."""
    output: Tensor = checkpoint(
        encoder.encode, inserted, tokens, use_reentrant=False, preserve_rng_state=False
    )
    return output


def _distinct(tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
    """A class's equal texts once: which texts those are, and for each text which of them it is."""
    texts = torch.arange(len(tokens), device=tokens.ids.device)
    content = torch.cat([(texts // k).unsqueeze(1), tokens.ids, tokens.mask.long()], dim=1)
    found, again = torch.unique(content, dim=0, return_inverse=True)
    if len(found) == len(texts):
        return texts, texts
    first = texts.new_full((len(found),), len(texts)).scatter_reduce(0, again, texts, "amin")
    return first, again


def cached_text_embeddings(choice: EncoderChoice[Any], texts: Sequence[str]) -> Tensor:
    """Features of texts that no prompt touches, computed once per machine and kept on disk.

    The result is stored in $FEDRAY_CACHE/text under a name made of the encoder's identity (a hash
    of its weights), the texts in their order, and what decides rounding (torch, the processor's
    instructions, threads). When it is there the encoder is not loaded. Of several processes that
    ask at once, one computes and the others wait. The file is checked when it is opened, and made
    again when it is damaged. A cache that cannot be written is a warning.

    Args:
        choice: the encoder.
        texts: T texts.

    Returns:
        Features [T, d] on the CPU, float32, not normalised.

    Raises:
        UserError: when the encoder's package or weights are not there.
    """
    if not choice.cached:
        return choice.build().features(texts)
    folder = cache_folder() / "text" / _key(choice.identity(), texts)
    made: list[Tensor] = []

    def make(inside: Path) -> None:
        made.append(choice.build().features(texts))
        np.save(inside / _FILE, made[0].numpy())

    try:
        check_or_make(folder, "text embeddings", make)
    except OSError as error:
        _log.warning("text embeddings are not kept: %s; set FEDRAY_CACHE to mend it", error)
        return made[0] if made else choice.build().features(texts)
    return torch.from_numpy(np.load(folder / _FILE, allow_pickle=False))


def _key(identity: str, texts: Sequence[str]) -> str:
    arithmetic = [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
    ]
    what = json.dumps([_FORMAT, identity, list(texts), arithmetic])
    return hashlib.sha256(what.encode()).hexdigest()
