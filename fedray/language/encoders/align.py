"""ALIGN's text tower, through transformers: what FedGLCL's official code embeds names with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from fedray.config import Frozen, InputFile, PathText
from fedray.errors import UserError
from fedray.language.encoders.base import Tokens, TowerPart, encoders
from fedray.language.encoders.bert import BertEncoder, WordPieceChoice
from fedray.language.encoders.bert_files import configured, find_folder, load_model, packed

HUB_DEFAULT = "kakaobrain/align-base"

_UNREAD = ("vision_model.", "text_model.pooler.", "temperature")
"""What of ALIGN no text is read with."""


class AlignParams(Frozen):
    """Which ALIGN."""

    model: PathText | None = None
    """A name on the hub; default kakaobrain/align-base, V = 640."""
    path: InputFile | None = None
    """A folder with config, tokenizer and weights, instead of the hub."""

    @model_validator(mode="after")
    def _possible(self) -> AlignParams:
        if self.model and self.path:
            raise ValueError(
                "has both model and path; keep text.encoder.path for a local folder, "
                "or text.encoder.model for the hub"
            )
        return self


@encoders.add
class AlignChoice(WordPieceChoice[AlignParams]):
    """ALIGN's text tower: a BERT and a projection to the space that it shares with images."""

    name = "align"
    Params = AlignParams
    paper = "Jia et al., ALIGN, ICML 2021; FedGLCL, official code"

    def folder(self) -> Path:
        """The folder with configuration, tokenizer and weights; downloaded if the hub has it.

        Raises:
            UserError: when it is not there, or lacks a file.
        """
        return find_folder(self.params.path, self.params.model or HUB_DEFAULT)

    @property
    def pooling(self) -> Literal["cls", "mean"]:
        """The first position is what the projection reads."""
        return "cls"

    def _identity_in(self, folder: Path) -> str:
        return "align:" + super()._identity_in(folder).split(":")[-1]

    def width(self) -> int | None:
        """The projection's width, as config.json gives it.

        Raises:
            UserError: as `folder`.
        """
        return configured(self.folder(), "projection_dim")

    def build(self) -> AlignEncoder:
        """Load the text tower, frozen, on the CPU; the image tower is dropped.

        Raises:
            UserError: when package or weights are not there, or are of another kind.
        """
        folder = self.folder()
        return AlignEncoder(folder, self._identity_in(folder))


class AlignEncoder(BertEncoder):
    """ALIGN's `get_text_features`: the first position's output, projected linearly (640 wide).

    Args:
        folder: configuration, tokenizer and weights.
        identity: see `TextEncoder`.

    Raises:
        UserError: when the package is not there, or the weights are of another kind.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        if not (folder / "config.json").is_file() or configured(folder, "projection_dim") is None:
            raise UserError(
                f"text.encoder=align: {folder} holds no ALIGN, its config.json has no "
                "projection_dim; give a folder of one, or set text.encoder.name=bert"
            )
        super().__init__(folder, identity, "cls")
        self.dim = int(self._projection.out_features)

    def _load(self, folder: Path) -> Any:
        align = load_model(folder, "AlignModel", _UNREAD)
        self._projection = align.text_projection
        align.text_model.pooler = None
        return packed(align.text_model) or align.text_model

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d']."""
        projected: Tensor = self._projection(super().encode(embeddings, tokens))
        return projected

    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        """The tower's last blocks with the projection, see `TextEncoder.part`."""
        found = super().part(texts, blocks)
        projection = {f"projection.{n}": t for n, t in self._projection.state_dict().items()}
        return found._replace(tensors={**found.tensors, **projection})

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._projection.to(device)
        return super().to(device)
