"""MaPLe-style prompts in both towers of a frozen CLIP, trained locally or by FedAvg and its kin.

Khattak et al., "MaPLe: Multi-modal Prompt Learning", CVPR 2023, arXiv:2210.03117. DP2FL
(arXiv:2504.16357) trains these prompts and compares itself with methods that train the same.

    Coupling F -> DualPromptClip.vision_prompts

Deviations:
    - No random crops: images are prepared as for testing.
    - One layer of prompts by default (`depth`), MaPLe's nine in the experiments of scale "paper".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.base import Algorithm
from fedray.algorithms.fedprox import FedProx
from fedray.algorithms.pfedme import PFedMe
from fedray.algorithms.promptfl import STD, PromptAveraging
from fedray.algorithms.registry import algorithms
from fedray.config import Frozen
from fedray.errors import UserError
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import PHOTO, placeholders, word_embeddings


class DualPromptClip(PromptedClip):
    """Text prompts, and maps that turn them into vision prompts.

    Reads images, or what `clip.vision.embed` makes of them.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        length: n, tokens of each prompt.
        depth: J, blocks of both towers that get prompts of their own.
        words: the first text prompt starts from their embeddings; None for N(0, 0.02²).

    Attributes:
        task: the text prompts p_0..p_{J-1} [n, d_t], DP2FL's task prompt.
        data: the maps F_0..F_{J-1} from d_t to the vision width, DP2FL's data prompt.

    Raises:
        UserError: when a tower has fewer blocks.
    """

    reads = "images"

    def __init__(
        self, clip: FrozenClip, names: Sequence[str], length: int, depth: int, words: str | None
    ) -> None:
        super().__init__(clip, names)
        most = min(clip.text.layers, clip.vision.layers)
        if depth > most:
            raise UserError(
                f"algorithm.depth={depth}, but prompts can enter {most} blocks of the CLIP of "
                f"model.clip; set algorithm.depth to {most} or less"
            )
        self.length = length
        self.words = words
        self.template = PHOTO if length <= 4 else placeholders(length)
        text, vision = clip.text.token_width, clip.vision.width
        self.task = nn.ParameterList(torch.zeros(length, text) for _ in range(depth))
        self.data = nn.ModuleList(nn.Linear(text, vision) for _ in range(depth))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """As MaPLe: p_0 from words, deeper ones from noise; PyTorch's maps, deeper ones equal."""
        for index, prompt in enumerate(self.task):
            if index == 0 and self.words is not None:
                prompt.copy_(word_embeddings(self.clip.text, self.words, self.length))
            else:
                prompt.normal_(0.0, STD, generator=generator)
        for index in range(min(2, len(self.data))):
            for tensor in self.data[index].parameters():
                bound = 1 / math.sqrt(self.clip.text.token_width)
                tensor.uniform_(-bound, bound, generator=generator)
        for deeper in self.data[2:]:
            deeper.load_state_dict(deepcopy(self.data[1].state_dict()))

    def vision_prompts(self) -> list[Tensor]:
        """Pi_i = F_i(p_i), each [n, w]; DP2FL's Eq. (3)."""
        return [coupling(prompt) for coupling, prompt in zip(self.data, self.task, strict=True)]

    def text_features(self) -> Tensor:
        """Features [K, d] of "a photo of a {class}." with the first n words replaced.

        More than those four words (n > 4) have places of their own in front of the name.
        """
        return self.class_texts(self.template).encode(self.task[0], list(self.task[1:]))

    def image_features(self, inputs: Tensor) -> Tensor:
        """Unit image features [B, d] of images, or of what they were embedded as [B, 1+M, w]."""
        if inputs.dim() == 4:
            with torch.no_grad():  # no prompt enters here
                inputs = self.clip.vision.embed(inputs)
        features = self.clip.vision.encode_prompted(inputs, self.vision_prompts())
        return F.normalize(features.float(), dim=-1)

    def apart(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Text prompts and maps of named parameters, each flattened into one vector."""
        task, data = (
            torch.cat([tensors[name].reshape(-1) for name in names]) for names in self._parts()
        )
        return task, data

    def together(self, task: Tensor, data: Tensor) -> dict[str, Tensor]:
        """The named parameters of two vectors, as `apart` makes them."""
        own = dict(self.named_parameters())
        named: dict[str, Tensor] = {}
        for names, vector in zip(self._parts(), (task, data), strict=True):
            pieces = torch.split(vector, [own[name].numel() for name in names])
            named |= {
                name: piece.reshape(own[name].shape)
                for name, piece in zip(names, pieces, strict=True)
            }
        return named

    def _parts(self) -> tuple[list[str], list[str]]:
        """The names of the text prompts and of the maps' parameters."""
        task = [f"task.{name}" for name, _ in self.task.named_parameters()]
        return task, [f"data.{name}" for name, _ in self.data.named_parameters()]


class MapleHParams(Frozen):
    """Hyper-parameters of methods with such prompts."""

    length: int = Field(2, ge=1, le=64)
    """n, tokens of each prompt (MaPLe: 2)."""
    depth: int = Field(1, ge=1, le=64)
    """J, blocks of both towers that get prompts of their own. MaPLe: 9; DP2FL's equations: 1."""
    words: str | None = "a photo of a"
    """The first text prompt starts from these words' embeddings; None: from N(0, 0.02²)."""


@algorithms.add
class MapleLocal(Algorithm):
    """MaPLe's prompts at each client, trained alone (DP2FL's comparison "Local")."""

    name = "maple_local"
    paper = "Khattak et al., CVPR 2023, arXiv:2210.03117, at each client"
    shares = "nothing"
    prompted = True
    has_head = False

    class HParams(MapleHParams):
        """Those of the prompts."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """Text prompts and maps."""
        return DualPromptClip(clip, class_names, self.hp.length, self.hp.depth, self.hp.words)


@algorithms.add
class MapleFedAvg(PromptAveraging):
    """FedAvg of MaPLe's prompts."""

    name = "maple_fedavg"
    paper = "Khattak et al., CVPR 2023, arXiv:2210.03117, averaged"
    shares = "text prompts and the maps to vision prompts"
    prompts = MapleLocal.prompts

    class HParams(PromptAveraging.HParams, MapleHParams):
        """Those of both."""


@algorithms.add
class MapleFedProx(MapleFedAvg, FedProx):
    """FedProx on MaPLe's prompts (DP2FL's comparison "FP+P")."""

    name = "maple_fedprox"

    class HParams(MapleFedAvg.HParams, FedProx.HParams):
        """Those of both; μ = 0 is maple_fedavg."""


@algorithms.add
class MaplePFedMe(MapleFedAvg, PFedMe):
    """pFedMe on MaPLe's prompts (DP2FL's comparison "pF+P")."""

    name = "maple_pfedme"
    one_model = False

    class HParams(PFedMe.HParams, MapleFedAvg.HParams):
        """Those of both; defaults are pFedMe's, so the mean is uniform."""
