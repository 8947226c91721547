"""The text tower: a text encoder with the texts of the classes, tokenised and embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.base.errors import UserError
from fedray.language.distinct import Pair, equal_tokens, equal_vectors, refuse_equal
from fedray.language.encoders import EncoderChoice, TextEncoder, TokenEncoder, Tokens
from fedray.language.encoders.base import TowerPart
from fedray.language.prototypes import mean_of_texts, text_prototypes
from fedray.language.text_cache import cached_text_embeddings
from fedray.language.trainable import PREFIX


class TextTower:
    """A text encoder with the texts of the classes, as a server uses it.

    The encoder is loaded by the first call that needs it, since embeddings without prompts may be
    in the cache.

    Args:
        choice: the encoder.
        texts: k texts for each of C classes.
        device: the device of the encoder.
        insists: whether the user gave the classes' names; classes that the encoder cannot
            distinguish are then warned of, else refused when it first reads the texts.
    """

    def __init__(
        self,
        choice: EncoderChoice,
        texts: Sequence[Sequence[str]],
        device: torch.device,
        *,
        insists: bool = False,
    ) -> None:
        self.choice, self._insists, self.device = choice, insists, device
        self.encoder_name = choice.name
        if choice.per_class:
            texts = [texts_of_class[:1] for texts_of_class in texts]
        self.k, self.num_classes = len(texts[0]), len(texts)
        self.texts = [text for texts_of_class in texts for text in texts_of_class]

    def check(self, feature_dim: int) -> None:
        """Check, without loading weights, that text prototypes can be aligned with image features.

        Args:
            feature_dim: width d of the image features.

        Raises:
            UserError: if the weights are missing, the encoder cannot read all texts, or its known
                width is not d.
        """
        self.choice.identity()
        self.choice.check(self.texts)
        width = self.choice.width()
        if width is not None:
            self.check_width(width, feature_dim)

    def check_width(self, width: int, feature_dim: int) -> None:
        """Raise a UserError, with the key to set, if prototypes and features differ in width."""
        if width != feature_dim:
            raise UserError(
                f"text.encoder={self.encoder_name} gives prototypes of width {width}, but "
                f"model.feature_dim={feature_dim}; set model.feature_dim={width}"
            )

    def _refuse_equal(self, pair: Pair | None) -> None:
        """Refuse two classes that the encoder cannot distinguish."""
        remedy = "rename one of them, or set text.names or text.descriptions to texts that differ"
        encoder = f"text.encoder={self.encoder_name}"
        refuse_equal(pair, self.texts[:: self.k], encoder, remedy, insists=self._insists)

    @cached_property
    def encoder(self) -> TextEncoder:
        """The loaded encoder."""
        return self.choice.build().to(self.device)

    @cached_property
    def _read(self) -> tuple[TokenEncoder, Tokens, Tensor]:
        """The encoder with the tokens of the texts and their word embeddings [C*k, n, d'].

        Raises:
            UserError: if the encoder reads no tokens, or those of two classes are equal.
        """
        encoder = self.encoder
        if not isinstance(encoder, TokenEncoder):
            raise UserError(
                f"text.encoder={self.encoder_name} reads no tokens that prompts could replace; set "
                "algorithm.prompt_length=0, or text.encoder=minilm"
            )
        tokens = encoder.tokenize(self.texts)
        self._refuse_equal(equal_tokens(tokens, self.k))
        with torch.no_grad():
            return encoder, tokens, encoder.embed(tokens)

    @property
    def token_width(self) -> int:
        """d', the width of a context token."""
        return self._read[0].token_width

    @property
    def shortest_text(self) -> int:
        """The number of tokens of the shortest text, special tokens included."""
        return self._read[1].shortest

    @cached_property
    def _frozen(self) -> Tensor:
        """The features of all texts [C*k, d] without prompts."""
        features = cached_text_embeddings(self.choice, self.texts).to(self.device)
        self._refuse_equal(equal_vectors(mean_of_texts(features, self.k)))
        return features

    def frozen_prototypes(self, *, of_unit_length: bool = False) -> Tensor:
        """Return text prototypes [C, d] without prompts (m = 0), cached on disk.

        Args:
            of_unit_length: scale each text's features, and their mean, to length 1, as in CLIP's
                prompt ensembles; else do not normalise (FedTSP section 3.3).
        """
        if of_unit_length:
            unit = F.normalize(self._frozen, dim=1)
            return F.normalize(mean_of_texts(unit, self.k), dim=1)
        return mean_of_texts(self._frozen, self.k)

    def trainable(self, blocks: int | None) -> TowerPart:
        """Return the encoder's last blocks and their inputs for the texts, for training by clients.

        Args:
            blocks: number of last blocks; None for the whole encoder.

        Raises:
            UserError: if the encoder cannot be trained in part.
        """
        part = self.encoder.part(self.texts, blocks)
        tensors = {PREFIX + name: tensor.cpu() for name, tensor in part.tensors.items()}
        shape = torch.cat([part.shape[:4], torch.tensor([self.k], dtype=torch.float64)])
        return TowerPart(tensors, part.start.cpu(), part.mask.cpu(), shape)

    def prototypes(
        self, prompts: Tensor, past_text: bool = False, classes: Tensor | None = None
    ) -> Tensor:
        """Return text prototypes [C, d] under prompts v [C, m, d'], differentiable in v.

        Args:
            prompts: v.
            past_text: see `text_prototypes`.
            classes: int64 [c], the classes of the result [c, d]; None for all.

        Raises:
            UserError: if the prompts are longer than the shortest text, or, with `past_text`,
                than the encoder's limit.
        """
        encoder, tokens, embeddings = self._read
        if classes is not None:
            of_class = torch.arange(self.k, device=self.device)
            texts = (classes.unsqueeze(1) * self.k + of_class).flatten()
            tokens, embeddings, prompts = tokens[texts], embeddings[texts], prompts[classes]
        return text_prototypes(encoder, tokens, embeddings, prompts, self.k, past_text=past_text)
