"""Zero-shot CLIP: nobody trains and nothing travels; what prompt methods must exceed.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
arXiv:2103.00020.

    classification by class names -> ZeroShotClip.text_features
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import field_validator
from torch import Tensor

from fedray.algorithms.base import Algorithm
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.config import Frozen
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import PHOTO


class ZeroShotClip(PromptedClip):
    """A frozen CLIP with one text for each class, and no prompts.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        template: with {} for the name.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str], template: str = PHOTO) -> None:
        super().__init__(clip, names)
        self.template = template

    def initialise(self, generator: torch.Generator) -> None:
        """There is nothing to draw."""

    def text_features(self) -> Tensor:
        """Those of the texts as they are [K, d]."""
        return self.fixed_texts(self.template)


@algorithms.add
class ZeroShot(Algorithm):
    """CLIP as it is."""

    name = "zero_shot"
    paper = "Radford et al., ICML 2021, arXiv:2103.00020"
    shares = "nothing"
    prompted = True
    has_head = False

    class HParams(Frozen):
        """The text of a class."""

        template: str = PHOTO
        """With {} for the name; CLIP's own differ by data set ("a photo of a {}, a type of
        flower.")."""

        @field_validator("template")
        @classmethod
        def _has_one_place(cls, value: str) -> str:
            if value.count("{}") != 1 or value.count("{") != 1 or value.count("}") != 1:
                raise ValueError(
                    f"'{value}' needs {{}} once, for the name, and no other braces; for example "
                    f"'{PHOTO}'"
                )
            return value

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """None."""
        return ZeroShotClip(clip, class_names, self.hp.template)

    def client_update(
        self, client: Client, state: ClientState, down: None
    ) -> tuple[None, ClientState]:
        """Nothing: there is nothing to train."""
        return None, state
