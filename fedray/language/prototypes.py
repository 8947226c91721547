"""Text prototypes: under prompts with gradients, or frozen and out of a cache."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedray.data.cache import cache_folder
from fedray.language.encoders import EncoderSpec, TextEncoder, Tokens, build_encoder
from fedray.language.encoders import encoder_identity as identity_of
from fedray.language.encoders.base import CHUNK
from fedray.language.prompts import insert_prompts

_FORMAT = 1
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
    chunk: int = CHUNK,
) -> Tensor:
    """Text prototypes under prompts: the mean over j of g1(p_{c,j}), differentiable in v.

    Above `chunk` texts the encoder runs over them in parts and, where gradients are asked for,
    again in the backward pass, so that the activations of one part only are in memory.

    Args:
        encoder: frozen.
        tokens: the tokens of C*k texts, the k of a class side by side.
        embeddings: encoder.embed(tokens) [C*k, n, d'], computed once.
        prompts: v [C, m, d'], on the same device; m = 0 for the texts as they are.
        k: texts per class.
        keep_special: keep the special first token, see `insert_prompts`.
        chunk: texts that go through the encoder at once.

    Returns:
        [C, d], not normalised.

    Raises:
        UserError: when the prompts are longer than the shortest text.

    Paper: FedTSP section 3.3, with Eq. (4).
    """
    inserted = insert_prompts(embeddings, prompts, k, keep_special, tokens.shortest)
    if len(tokens) <= chunk:
        return class_means(encoder.encode(inserted, tokens), k)
    parts: list[Tensor] = []
    for start in range(0, len(tokens), chunk):
        rows = slice(start, start + chunk)
        if inserted.requires_grad and torch.is_grad_enabled():
            part = checkpoint(
                encoder.encode,
                inserted[rows],
                tokens[rows],
                use_reentrant=False,
                preserve_rng_state=False,  # frozen: no dropout draws
            )
        else:
            part = encoder.encode(inserted[rows], tokens[rows])
        parts.append(part)
    return class_means(torch.cat(parts), k)


def cached_text_embeddings(spec: EncoderSpec, texts: Sequence[str]) -> Tensor:
    """Features of texts that no prompt touches, computed once per machine and kept on disk.

    The answer lies in $FEDRAY_CACHE/text under a name made of the encoder's identity (with a hash
    of its weights), the texts in their order, and what decides rounding (torch, the processor's
    instructions, threads). When it is there the encoder is not loaded. Of several processes that
    ask at once, one computes and the others wait.

    Args:
        spec: the encoder.
        texts: T texts.

    Returns:
        Features [T, d] on the CPU, float32, not normalised.

    Raises:
        UserError: when the encoder's package or weights are not there.
    """
    if spec.name in ("random", "orthogonal"):
        return build_encoder(spec).features(texts)
    path = cache_folder() / "text" / f"{_key(identity_of(spec), texts)}.npy"
    found = _read(path, len(texts))
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock")
        lock.acquire()
    except OSError as error:
        _log.warning("text embeddings are not kept: %s; set FEDRAY_CACHE to mend it", error)
        return build_encoder(spec).features(texts)
    try:
        found = _read(path, len(texts))
        if found is None:
            found = build_encoder(spec).features(texts)
            _write(path, found)
    finally:
        lock.release()
    return found


def _key(identity: str, texts: Sequence[str]) -> str:
    arithmetic = [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
    ]
    what = json.dumps([_FORMAT, identity, list(texts), arithmetic])
    return hashlib.sha256(what.encode()).hexdigest()


def _read(path: Path, number: int) -> Tensor | None:
    """The stored features; None when they are not there or not whole."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if array.ndim != 2 or len(array) != number or array.dtype != np.float32:
        return None
    return torch.from_numpy(array)


def _write(path: Path, features: Tensor) -> None:
    """Write beside, then rename, so that a torn file is never read."""
    made: str | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            made = file.name
            np.save(file, features.numpy())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, 0o644)
        os.replace(made, path)
    except OSError as error:
        if made is not None:
            Path(made).unlink(missing_ok=True)
        _log.warning("text embeddings are not kept: %s; set FEDRAY_CACHE to mend it", error)
