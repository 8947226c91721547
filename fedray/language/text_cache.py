"""The node's cache of text features, which avoids loading weights."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedray.base.errors import UserError, shown
from fedray.config.plugins import plugin_of
from fedray.config.registry import version_of
from fedray.language.encoders import EncoderChoice
from fedray.storage.cache import Arrays, content_key, kept_arrays

_PACKAGES = ("transformers", "tokenizers", "open_clip_torch")


def cached_text_embeddings(choice: EncoderChoice, texts: Sequence[str]) -> Tensor:
    """Return features [T, d] of texts without prompts, on the CPU, not normalised.

    The cache key consists of the encoder's identity (a hash of its weights), the texts in their
    order, and what affects rounding: versions of the encoder's code, of its packages and of torch,
    the processor's instructions, threads.

    Raises:
        UserError: if the encoder's package or weights are missing, or the cache cannot be written.
    """
    if not choice.cached:
        return _features(choice, texts)
    arithmetic = [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        version_of(type(choice)),
        plugin_of(type(choice)),
        *map(importlib.metadata.version, _PACKAGES),
    ]

    def make(arrays: Arrays) -> None:
        arrays.save("features", _features(choice, texts).numpy())

    name = content_key("features", choice.identity(), list(texts), arithmetic)
    kept = kept_arrays("text", name, "text embeddings", make)
    return torch.from_numpy(np.array(kept.arrays["features"]))


def _features(choice: EncoderChoice, texts: Sequence[str]) -> Tensor:
    """Return an encoder's features as float32 on the CPU, whatever kind of array it returns.

    Raises:
        UserError: if the encoder does not return one vector per text.
    """
    found = choice.build().features(texts)
    try:
        features = torch.as_tensor(found).detach().cpu().float()
    except (TypeError, ValueError, RuntimeError):
        features = torch.zeros(0)
    if features.ndim != 2 or len(features) != len(texts):
        raise UserError(
            f"text.encoder={choice.name}: features returns {shown(found)}, expected a tensor "
            f"[{len(texts)}, d] for {len(texts)} texts"
        )
    return features
