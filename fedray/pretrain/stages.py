"""The two stages of training, driven by one loop: the text tower, then the image tower.

The text tower copies a teacher's vectors of words and sentences, whatever frame stands around a
word. Then it is locked, and the image tower learns to point at its class's texts (locked-text
tuning: Zhai et al., "LiT", CVPR 2022, with the roles of the towers exchanged). Both losses compare
with frozen vectors alone, so workers need nothing of each other but gradients, and any number of
them computes the same up to rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedray.pretrain.captions import FRAMES, levels_of
from fedray.pretrain.distillation import DistillationData
from fedray.pretrain.images import Pool, draw_views, look
from fedray.pretrain.spec import PretrainConfig
from fedray.streams import Streams

Tokenizer = Any


class Stage(ABC):
    """One stage of gradient training.

    Attributes:
        name: for progress and checkpoints.
        epochs: passes over `order`.
        batch_size: rows per step, over all workers.
        lr: peak learning rate.
        parameters: the trainable parameters, by name.
        order: int64 [m], the rows of one epoch.
    """

    name: str
    epochs: int
    batch_size: int
    lr: float
    parameters: dict[str, nn.Parameter]
    order: Tensor

    @property
    def steps(self) -> int:
        """Steps of one epoch; an incomplete batch is left out, unless it is the only one."""
        return max(1, len(self.order) // self.batch_size)

    @abstractmethod
    def loss(self, rows: Tensor, mine: slice, step: int) -> Tensor:
        """Mean loss over this worker's share of a batch.

        Args:
            rows: the batch, the same on every worker.
            mine: this worker's share of it.
            step: counted over all epochs; what random draws depend on.
        """


class TextStage(Stage):
    """The text tower is trained to give the teacher's vectors (distillation)."""

    name = "text"

    def __init__(
        self, config: PretrainConfig, model: Any, tokenizer: Tokenizer, data: DistillationData
    ) -> None:
        spec = config.text
        self.epochs, self.batch_size, self.lr = spec.epochs, spec.batch_size, spec.lr
        self.parameters = text_parameters(model)
        self.order = torch.arange(len(data.targets))
        self._model, self._tokenizer, self._data = model, tokenizer, data
        self._streams, self._temperature = Streams(config.seed), spec.temperature
        self._targets = data.targets.to(model.logit_scale.device)

    def loss(self, rows: Tensor, mine: slice, step: int) -> Tensor:
        """Softmax over the batch's teacher vectors, and 1 - cosine to the text's own."""
        draws = self._streams.numpy("pretrain_frames", round_=step).integers(
            len(FRAMES), size=len(rows)
        )
        pairs = zip(rows.tolist(), draws.tolist(), strict=True)
        texts = [self._text(row, frame) for row, frame in pairs]
        found = F.normalize(encode(self._model, self._tokenizer, texts[mine]), dim=1)
        cosines = found @ self._targets[rows].T
        targets = torch.arange(len(rows), device=cosines.device)[mine]
        match = cosines[torch.arange(len(targets)), targets]
        return F.cross_entropy(cosines / self._temperature, targets) + (1 - match).mean()

    def _text(self, row: int, frame: int) -> str:
        nouns, sentences = self._data.nouns, self._data.sentences
        if row < len(nouns):
            return FRAMES[frame].format(nouns[row])
        return sentences[row - len(nouns)]


class ImageStage(Stage):
    """The image tower is trained to align with its class's texts; the text tower is frozen."""

    name = "image"

    def __init__(
        self, config: PretrainConfig, model: Any, tokenizer: Tokenizer, pool: Pool
    ) -> None:
        spec = config.image
        self.epochs, self.batch_size, self.lr = spec.epochs, spec.batch_size, spec.lr
        self.parameters = dict(model.visual.named_parameters(prefix="visual"))
        self.order = pool.order
        self._model, self._pool, self._spec = model, pool, spec
        self._streams = Streams(config.seed)
        nouns, positions = levels_of(pool.class_names, known=config.captions)
        self._banks = [texts_of(model, tokenizer, level) for level in nouns]
        self._positions = [torch.tensor(level) for level in positions]
        self._device = model.logit_scale.device

    def loss(self, rows: Tensor, mine: slice, step: int) -> Tensor:
        """Cross-entropy over all names, and over all kinds of either width."""
        views = draw_views(
            len(rows), self._spec, self._streams.torch("pretrain_views", round_=step)
        )
        views = type(views)(
            views.affine[mine].to(self._device), views.colour[mine].to(self._device)
        )
        rows = rows[mine]
        pixels = look(self._pool.images[rows].to(self._device), views)
        found = self._spec.scale * F.normalize(self._model.visual(pixels).float(), dim=1)
        frame = step % len(FRAMES)
        losses = []
        for bank, positions in zip(self._banks, self._positions, strict=True):
            labels = positions[self._pool.classes[rows]].to(self._device)
            losses.append(F.cross_entropy(found @ bank[frame].T, labels))
        return losses[0] + self._spec.kinds * torch.stack(losses[1:]).mean()


def text_parameters(model: Any) -> dict[str, nn.Parameter]:
    """What belongs to the text tower of an open_clip `CLIP`."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if not name.startswith("visual.") and name != "logit_scale"
    }


def encode(model: Any, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Outputs [T, embed_dim], float32, of texts cut behind the last end token: exact, and short."""
    ids: Tensor = tokenizer(texts)
    read = ids.argmax(1)  # the end token has the largest id
    n = int(read.max()) + 1
    device = model.logit_scale.device
    ids, read = ids[:, :n].to(device), read.to(device)
    hidden = model.token_embedding(ids) + model.positional_embedding[:n]
    hidden = model.ln_final(model.transformer(hidden, attn_mask=model.attn_mask[:n, :n]))
    output: Tensor = hidden[torch.arange(len(ids)), read] @ model.text_projection
    return output.float()


@torch.no_grad()
def texts_of(model: Any, tokenizer: Tokenizer, nouns: list[str]) -> Tensor:
    """Vectors of length one [frames, nouns, embed_dim], every noun in every frame."""
    parts = [encode(model, tokenizer, [frame.format(noun) for noun in nouns]) for frame in FRAMES]
    return F.normalize(torch.stack(parts), dim=2)
