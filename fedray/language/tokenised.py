"""Tokens of texts: made once per node and kept on disk, so that no tokenizer need be loaded."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedray.files import cache_folder
from fedray.integrity import check_or_make
from fedray.language.encoders import EncoderChoice, TextEncoder, Tokens
from fedray.language.encoders.base import warn_cut

_FORMAT = 1
_FILE = "tokens.npz"
_TOKENIZERS = ("transformers", "tokenizers", "open_clip_torch")
_log = logging.getLogger(__name__)


def cached_tokens(choice: EncoderChoice[Any], encoder: TextEncoder, texts: Sequence[str]) -> Tokens:
    """`encoder.tokenize(texts)`, on the CPU, out of $FEDRAY_CACHE/text where it was made before.

    It lies there under a name made of the encoder's identity (a hash of weights and tokenizer), the
    packages that tokenise, and the texts in their order. The file is checked as
    `cached_text_embeddings` does it, and texts that were cut are said again.

    Args:
        choice: what the encoder was built from.
        encoder: asked when there is no file.
        texts: T texts.

    Raises:
        UserError: when the tokenizer cannot be loaded.
    """
    folder = cache_folder() / "text" / _key(choice.identity(), texts)
    made: list[Tokens] = []

    def make(inside: Path) -> None:
        made.append(encoder.tokenize(texts).to(torch.device("cpu")))
        found = made[0]
        arrays = {name: getattr(found, name).numpy() for name in ("ids", "mask", "read")}
        limit = encoder.limit if found.cut else 0
        np.savez(inside / _FILE, **arrays, cut=np.array(found.cut, np.int64), limit=limit)

    try:
        check_or_make(folder, "tokens", make)
    except OSError as error:
        _log.warning("tokens are not kept: %s; set FEDRAY_CACHE to mend it", error)
    return made[0] if made else _read(folder / _FILE, encoder, texts)


def _read(path: Path, encoder: TextEncoder, texts: Sequence[str]) -> Tokens:
    if not path.is_file():  # it could not be written
        return encoder.tokenize(texts).to(torch.device("cpu"))
    with np.load(path, allow_pickle=False) as file:
        ids, mask, read = (torch.from_numpy(file[name]) for name in ("ids", "mask", "read"))
        cut, limit = tuple(file["cut"].tolist()), int(file["limit"])
    warn_cut(texts, cut, limit)
    return Tokens(ids, mask, read, cut)


def _key(identity: str, texts: Sequence[str]) -> str:
    what = json.dumps(["tokens", _FORMAT, identity, list(texts), *map(_version, _TOKENIZERS)])
    return hashlib.sha256(what.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
