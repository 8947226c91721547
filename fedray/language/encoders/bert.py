"""BERT and its relatives, through transformers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import StrictBool, model_validator
from torch import Tensor

from fedray.config import Frozen, InputFile, PathText
from fedray.errors import UserError
from fedray.language.encoders.base import (
    EncoderChoice,
    P,
    TextEncoder,
    Tokens,
    TowerPart,
    encoders,
    pick,
    same_bits,
    too_long,
)
from fedray.language.encoders.bert_files import (
    TEXT_FILES,
    configured,
    find_folder,
    load_model,
    load_tokenizer,
    most_tokens,
    packed,
    read_bert,
    weight_files,
)
from fedray.language.encoders.packed import PackedBert
from fedray.language.encoders.weights import digest

HUB_DEFAULT = "bert-base-uncased"


class WordPieceChoice(EncoderChoice[P]):
    """A bidirectional encoder of transformers that reads word pieces: BERT, or a relative."""

    @abstractmethod
    def folder(self) -> Path:
        """The folder with configuration, tokenizer and weights.

        Raises:
            UserError: when it is not there.
        """

    @property
    @abstractmethod
    def pooling(self) -> Literal["cls", "mean"]:
        """Which output represents a text: that of the first position, or the mean of all."""

    @property
    def compat(self) -> bool:
        """Whether to compute as the official FedTSP code does, see `BertEncoder`."""
        return False

    def identity(self) -> str:
        """Names the content of the folder and the options that change the output."""
        return self._identity_in(self.folder())

    def width(self) -> int | None:
        """The width that config.json gives.

        Raises:
            UserError: as `folder`.
        """
        return configured(self.folder(), "hidden_size")

    def build(self) -> BertEncoder:
        """Load the encoder, frozen, on the CPU.

        Raises:
            UserError: when package or weights are not there, or are of another kind.
        """
        folder = self.folder()
        return BertEncoder(folder, self._identity_in(folder), self.pooling, compat=self.compat)

    def _identity_in(self, folder: Path) -> str:
        texts = [path for pattern in TEXT_FILES for path in folder.glob(pattern)]
        pooling = self.pooling + ("-compat" if self.compat else "")
        return f"bert:{pooling}:{digest([*texts, *weight_files(folder)])}"


class BertParams(Frozen):
    """Which BERT, and how its output is read."""

    model: PathText | None = None
    """A name on the hub; default bert-base-uncased."""
    path: InputFile | None = None
    """A folder with config, tokenizer and weights, instead of the hub."""
    pooling: Literal["cls", "mean"] = "cls"
    """Read the first position (FedTSP), or the mean of all."""
    bert_compat: StrictBool = False
    """As the official FedTSP code does it: positions, types and layer norm are applied twice, and
    padding is attended."""

    @model_validator(mode="after")
    def _possible(self) -> BertParams:
        if self.model and self.path:
            raise ValueError(
                "has both model and path; keep text.encoder.path for a local folder, "
                "or text.encoder.model for the hub"
            )
        if self.bert_compat and self.pooling == "mean":
            raise ValueError(
                "bert_compat=true reads the first position; remove text.encoder.pooling=mean"
            )
        return self


@encoders.add
class BertChoice(WordPieceChoice[BertParams]):
    """BERT or a relative, from the hub or a folder, through transformers."""

    name = "bert"
    Params = BertParams
    paper = "Devlin et al., BERT, NAACL 2019"

    def folder(self) -> Path:
        """The folder with configuration, tokenizer and weights; downloaded if the hub has it.

        Raises:
            UserError: when it is not there, or lacks a file.
        """
        return find_folder(self.params.path, self.params.model or HUB_DEFAULT)

    @property
    def pooling(self) -> Literal["cls", "mean"]:
        """Which output represents a text."""
        return self.params.pooling

    @property
    def compat(self) -> bool:
        """Whether to compute as the official FedTSP code does."""
        return self.params.bert_compat


class BertEncoder(TextEncoder):
    """A bidirectional encoder of transformers: word embeddings in, one position or the mean out.

    Prompts replace word embeddings; positions, token types and layer norm are applied once and
    padding is masked. With `compat` it is as in the official FedTSP code: what counts as word
    embedding is the output of the whole embedding layer, which is fed through that layer again,
    and padding is attended (so all texts count as equally long).

    A BERT is computed as a `PackedBert`; its relatives as transformers does it.

    Args:
        folder: configuration, tokenizer and weights.
        identity: see `TextEncoder`.
        pooling: read the first position, or the mean of all.
        compat: see above.

    Raises:
        UserError: when the package is not there, or the weights are of another kind.
    """

    def __init__(
        self, folder: Path, identity: str, pooling: Literal["cls", "mean"], *, compat: bool = False
    ) -> None:
        self.identity = identity
        self.pooling = pooling
        self.compat = compat
        self._folder = folder
        self._model = self._load(folder)
        if self.compat and not isinstance(self._model, PackedBert):
            raise UserError(
                f"text.encoder.bert_compat=true needs a BERT, found {type(self._model).__name__}; "
                "set text.encoder.bert_compat=false"
            )
        self.dim = self.token_width

    def _load(self, folder: Path) -> Any:
        found = read_bert(folder)
        if found is not None:
            return found
        model = load_model(folder)
        _check_is_text_model(model, folder)
        return packed(model) or model

    @cached_property
    def _tokenizer(self) -> Any:
        """Loaded when texts are: those in the node's cache need none."""
        return load_tokenizer(self._folder)

    @property
    def token_width(self) -> int:
        """d', the width of a word embedding."""
        if isinstance(self._model, PackedBert):
            return self._model.width
        return int(self._model.get_input_embeddings().embedding_dim)

    @property
    def limit(self) -> int:
        """The most tokens that it reads."""
        if isinstance(self._model, PackedBert):
            positions: int | None = len(self._model.positions)
        else:
            positions = getattr(self._model.config, "max_position_embeddings", None)
        return most_tokens(positions, self._tokenizer, self._folder)

    @property
    def kept_bytes(self) -> int | None:
        """What a token of a `PackedBert` leaves behind."""
        return self._model.kept_bytes if isinstance(self._model, PackedBert) else None

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, padded to the longest of them."""
        # Two passes: the first shows which texts are longer than the encoder reads.
        full = self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        cut = too_long(texts, [len(ids) for ids in full], self.limit)
        padded = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.limit,
            padding_side="right",
            return_tensors="pt",
        )
        device = self._device
        ids = padded["input_ids"].to(device)
        mask = padded["attention_mask"].to(device).bool()
        read = torch.full((len(ids),), 0 if self.pooling == "cls" else -1, device=device)
        return Tokens(ids, torch.ones_like(mask) if self.compat else mask, read, cut)

    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [T, n, d']; under `compat` with positions, types and layer norm."""
        if not isinstance(self._model, PackedBert):
            embedded: Tensor = self._model.get_input_embeddings()(tokens.ids)
            return embedded
        words = self._model.words[tokens.ids]
        if not self.compat:
            return words
        positions = torch.arange(words.shape[1], device=words.device).expand(words.shape[:2])
        return self._model.embed(words, positions)

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d']."""
        mean = self.pooling == "mean"
        with same_bits(embeddings.device):
            if isinstance(self._model, PackedBert):
                return self._model.read(embeddings, tokens.mask, mean)
            output = self._model(inputs_embeds=embeddings, attention_mask=tokens.mask.long())
        hidden: Tensor = output.last_hidden_state
        if not mean:
            return pick(hidden, tokens.read)
        weights = tokens.mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    @torch.no_grad()
    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        """The tower's last blocks and what they start from, see `TextEncoder.part`."""
        model = self._checked(blocks)
        tokens, shape, state = self.tokenize(texts), model.shape, model.by_name()
        first = 0 if blocks is None else shape.layers - blocks
        chosen = tuple(f"encoder.layer.{i}." for i in range(first, shape.layers))
        kept = {name: tensor.clone() for name, tensor in state.items() if name.startswith(chosen)}
        if blocks is None:
            words, start = torch.unique(tokens.ids, return_inverse=True)
            embeddings = {n: t for n, t in state.items() if n.startswith("embeddings.")}
            rows = embeddings["embeddings.word_embeddings.weight"][words]
            kept = {**embeddings, "embeddings.word_embeddings.weight": rows, **kept}
        else:
            with same_bits(tokens.ids.device):
                start = model.outputs(tokens.ids, tokens.mask, first)
        mean = self.pooling == "mean"
        return TowerPart(kept, start, tokens.mask, shape.heads, shape.eps, shape.activation, mean)

    def _checked(self, blocks: int | None) -> PackedBert:
        """The tower, of which so many blocks can be trained.

        Raises:
            UserError: when it is no BERT, or has too few.
        """
        model = self._model
        if not isinstance(model, PackedBert) or self.compat:
            raise UserError(
                f"algorithm.blocks trains a BERT's blocks, and {type(model).__name__} has "
                "none of this kind (or bert_compat is set); set algorithm.blocks=0, or another "
                "text.encoder"
            )
        if blocks is not None and blocks > model.shape.layers:
            raise UserError(
                f"algorithm.blocks={blocks}, but the text tower has {model.shape.layers} blocks; "
                f"set it to {model.shape.layers} or less, or to all, which trains the embeddings "
                "too"
            )
        return model

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device  # type: ignore[no-any-return]

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._model.to(device)
        return self


def _check_is_text_model(model: Any, folder: Path) -> None:
    """Refuse models with a tower of images beside that of texts."""
    if not hasattr(model.config, "hidden_size") or not hasattr(model, "get_input_embeddings"):
        kind = model.config.model_type
        instead = "align" if kind == "align" else "openclip"
        raise UserError(
            f"text.encoder: {folder} holds {type(model).__name__}, which is no encoder of texts "
            f"alone; set text.encoder.name={instead}, or give a folder of a BERT"
        )
