"""The losses of the two stages: the text tower, then the image tower.

The text tower copies a teacher's vectors of words and sentences, whatever frame stands around a
word. Then it is locked, and the image tower learns to point at the texts of its class (locked-text
tuning: Zhai et al., "LiT", CVPR 2022, with the roles of the towers exchanged). Both losses compare
with frozen vectors alone, so workers exchange gradients and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedray.streams import Streams
from tools.small_clip.images import Pool
from tools.small_clip.model import Towers
from tools.small_clip.spec import ImageSpec, Spec, TextSpec
from tools.small_clip.texts import FRAMES, DistillationData, levels_of


class Stage(ABC):
    """One stage of training.

    Args:
        spec: epochs, batch size and learning rate.
        parameters: the parameters to train, by name.
        order: int64 [m], the rows of one epoch.

    Attributes:
        name: names the stage in progress lines and checkpoints.
    """

    name: str

    def __init__(
        self, spec: TextSpec | ImageSpec, parameters: dict[str, nn.Parameter], order: Tensor
    ) -> None:
        self.epochs, self.batch_size, self.lr = spec.epochs, spec.batch_size, spec.lr
        self.parameters, self.order = parameters, order

    @property
    def steps(self) -> int:
        """Steps of one epoch; an incomplete batch is left out, unless it is the only one."""
        return max(1, len(self.order) // self.batch_size)

    @abstractmethod
    def loss(self, rows: Tensor, share: slice, step: int) -> Tensor:
        """Return the mean loss over a worker's share of a batch.

        Args:
            rows: the batch, the same on every worker.
            share: the rows of this worker.
            step: counted over all epochs; random draws depend on it.
        """


class TextStage(Stage):
    """Distillation of the text tower from the teacher's vectors."""

    name = "text"

    def __init__(
        self, spec: Spec, model: nn.Module, towers: Towers, data: DistillationData
    ) -> None:
        parameters = dict(model.get_submodule("text").named_parameters(prefix="text"))
        super().__init__(spec.text, parameters, torch.arange(len(data.targets)))
        self._towers, self._data, self._temperature = towers, data, spec.text.temperature
        self._streams, self._targets = Streams(spec.seed), data.targets.to(towers.device)

    def loss(self, rows: Tensor, share: slice, step: int) -> Tensor:
        """Return a cross-entropy over the batch's teacher vectors, plus 1 - cosine to the own."""
        generator = self._streams.numpy("pretrain_frames", round_=step)
        frames = generator.integers(len(FRAMES), size=len(rows)).tolist()
        texts = list(map(self._text, rows.tolist(), frames))
        cosines = self._towers.text_features(texts[share]) @ self._targets[rows].T
        targets = torch.arange(len(rows), device=cosines.device)[share]
        match = cosines[torch.arange(len(targets)), targets]
        return F.cross_entropy(cosines / self._temperature, targets) + (1 - match).mean()

    def _text(self, row: int, frame: int) -> str:
        nouns, sentences = self._data.nouns, self._data.sentences
        return FRAMES[frame].format(nouns[row]) if row < len(nouns) else sentences[row - len(nouns)]


class ImageStage(Stage):
    """Alignment of the image tower with the texts of its classes; the text tower is frozen."""

    name = "image"

    def __init__(self, spec: Spec, model: nn.Module, towers: Towers, pool: Pool) -> None:
        parameters = dict(model.get_submodule("visual").named_parameters(prefix="visual"))
        super().__init__(spec.image, parameters, pool.order)
        self._towers, self._pool, self._scale = towers, pool, spec.image.scale
        self._augment = spec.image.augment.build()
        self._streams = Streams(spec.seed)
        nouns, positions = levels_of(pool.class_names)
        with torch.no_grad():
            self._texts = [_framed(towers, level) for level in nouns]
        self._positions = [torch.tensor(level) for level in positions]

    def loss(self, rows: Tensor, share: slice, step: int) -> Tensor:
        """Return a cross-entropy over all names, plus the mean of those over kinds."""
        rows = rows[share]
        draws = self._streams.torch("pretrain_views", round_=step, client=share.start)
        views = self._augment(self._pool.images[rows], draws)
        logits = self._scale * self._towers.image_features(views)
        losses = []
        for texts, positions in zip(self._texts, self._positions, strict=True):
            labels = positions[self._pool.classes[rows]].to(logits.device)
            losses.append(F.cross_entropy(logits @ texts[step % len(FRAMES)].T, labels))
        return losses[0] + torch.stack(losses[1:]).mean()


def _framed(towers: Towers, nouns: list[str]) -> Tensor:
    """Return unit text features [frames, nouns, embed_dim] of every noun in every frame."""
    return torch.stack(
        [towers.text_features([frame.format(noun) for noun in nouns]) for frame in FRAMES]
    )
