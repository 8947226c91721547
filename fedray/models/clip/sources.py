"""The registry of CLIPs for `model.clip`, and the sources of their weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from fedray.base.errors import UserError
from fedray.config import Entry
from fedray.config.registry import Registry
from fedray.data.decoding import Resize
from fedray.language.encoders.clip_weights import OpenClipParams, WeightSource, locate

MODEL_DEFAULT = "ViT-B-16-quickgelu"
KEY = "model.clip"


class ClipChoice(Entry, ABC):
    """A CLIP with its parameters, before any weights are loaded.

    Subclasses are the entries of `clips`; the first line of a docstring describes the entry.
    """

    @property
    def written(self) -> tuple[int, ...]:
        """Modification times of user files; part of the cache key of `load_clip`."""
        path = getattr(self, "path", None)
        if path is None:
            return ()
        file = Path(path).expanduser()
        try:
            files = file.iterdir() if file.is_dir() else [file]
            return tuple(sorted(path.stat().st_mtime_ns for path in files))
        except OSError:
            return ()  # reported when the files are read

    @abstractmethod
    def source(self) -> WeightSource:
        """Find the weights, or download them.

        Raises:
            UserError: if architecture, tag or file do not exist, or do not match.
        """

    def resize(self) -> Resize | None:
        """Return how the CLIP's own preprocessing scales images; None: as the source decides.

        Raises:
            UserError: as `source`, or if no `data.resize` scales images so.
        """
        chosen = {"interpolation": "bicubic", "resize_mode": "shortest"}
        chosen |= self.source().preprocess
        way = chosen["interpolation"], chosen["resize_mode"]
        if way not in _RESIZES:
            raise UserError(
                f"model.clip={self.name} wants images scaled by {' and '.join(map(str, way))}, "
                "which fedray does not do; set data.resize, for example data.resize=bicubic"
            )
        return _RESIZES[way]


_RESIZES: Mapping[tuple[str, str], Resize] = {
    ("bilinear", "shortest"): "bilinear",
    ("bicubic", "shortest"): "bicubic",
    ("bilinear", "squash"): "squash",
    ("bicubic", "squash"): "squash_bicubic",
}
"""Values of `data.resize` by open_clip's `interpolation` and `resize_mode`."""

clips: Registry[type[ClipChoice]] = Registry("CLIP", "fedray.models.clip.sources")
"""All CLIPs by name."""


@clips.add
class OpenClip(ClipChoice, OpenClipParams):
    """Any model of open_clip with a vision transformer."""

    name = "openclip"
    paper = "Radford et al., ICML 2021, arXiv:2103.00020"

    def source(self) -> WeightSource:
        return locate(self, KEY, MODEL_DEFAULT)


@clips.add
class SmallClip(ClipChoice):
    """The package's small CLIP for images of 32 pixels."""

    name = "small"

    def source(self) -> WeightSource:
        return OpenClip(path=str(small_clip_folder())).source()


def small_clip_folder() -> Path:
    """Return the folder of the package's small CLIP, in open_clip's layout."""
    return Path(__file__).parent / "small"
