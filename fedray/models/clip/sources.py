"""Which CLIP: the registry of what `model.clip` may name, and where its weights come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import model_validator

from fedray.config import Component, Frozen, InputFile, NoParams, PathText, Seed, parameters
from fedray.language.encoders.openclip_weights import WeightSource, locate
from fedray.registry import Registry

__all__ = ["MODEL_DEFAULT", "ClipChoice", "clips", "small_clip_folder"]

MODEL_DEFAULT = "ViT-B-16-quickgelu"
KEY = "model.clip"

P = TypeVar("P", bound=Frozen)


@dataclass(frozen=True)
class ClipChoice(ABC, Generic[P]):
    """A CLIP with its parameters, before any weights are loaded.

    Subclasses are the entries of `clips`; their docstring's first line is their description.

    Attributes:
        name: what `model.clip` calls it.
        Params: the type of its parameters.
        paper: its source, or "-".
        params: the parameters.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Frozen]]
    paper: ClassVar[str]

    params: P

    @staticmethod
    def of(component: Component) -> ClipChoice[Any]:
        """What `model.clip` of an experiment chooses, with validated parameters.

        Raises:
            UserError: when there is no such CLIP, or a parameter is unknown or out of bounds.
        """
        return clips.get(component.name)(parameters(component, "CLIP", KEY))

    @property
    def written(self) -> tuple[int, ...]:
        """When files of one's own were written: others in their place are another CLIP."""
        path = getattr(self.params, "path", None)
        if path is None:
            return ()
        file = Path(path).expanduser()
        try:
            files = file.iterdir() if file.is_dir() else [file]
            return tuple(sorted(each.stat().st_mtime_ns for each in files))
        except OSError:
            return ()  # who reads them says why

    @abstractmethod
    def source(self) -> WeightSource:
        """Find, or download, the weights.

        Raises:
            UserError: when architecture, tag or file do not exist, or do not belong together.
        """


clips: Registry[type[ClipChoice[Any]]] = Registry("CLIP", "fedray.models.clip.sources")
"""Every CLIP by its name."""


class OpenClipParams(Frozen):
    """Which of open_clip's models, with which weights."""

    model: PathText | None = None
    """An architecture, default ViT-B-16-quickgelu, or hf-hub:ORGANISATION/NAME."""
    pretrained: PathText | None = None
    """A tag (openai, laion2b_s34b_b88k, ...), or random for weights from `seed`."""
    path: InputFile | None = None
    """A file of weights (OpenAI's too), or a folder with open_clip_config.json."""
    seed: Seed = 0
    """With pretrained=random: what the weights are drawn from."""

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> OpenClipParams:
        if self.path and self.pretrained:
            raise ValueError(
                "has both pretrained and path; keep model.clip.path for a local file, or "
                "model.clip.pretrained for a tag"
            )
        return self


@clips.add
class OpenClip(ClipChoice[OpenClipParams]):
    """Any model of open_clip with a vision transformer."""

    name = "openclip"
    paper = "Radford et al., ICML 2021, arXiv:2103.00020"
    Params = OpenClipParams

    def source(self) -> WeightSource:
        """What the parameters name."""
        return locate(self.params, KEY, MODEL_DEFAULT)


@clips.add
class SmallClip(ClipChoice[NoParams]):
    """The CLIP for 32-pixel images that is part of the package."""

    name = "small"
    Params = NoParams
    paper = "-"

    def source(self) -> WeightSource:
        """The folder of the package."""
        return OpenClip(OpenClipParams(path=str(small_clip_folder()))).source()


def small_clip_folder() -> Path:
    """The folder of the package's small CLIP, in open_clip's layout."""
    return Path(__file__).parent / "small"
