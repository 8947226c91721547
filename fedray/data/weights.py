"""The pre-trained weights that shipped experiments use, and which of them are on this machine.

Nothing here asks the network.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedray.config import Frozen, parse_yaml
from fedray.data.downloads import Origin

_FILE = Path(__file__).with_suffix(".yaml")
WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "model-*.safetensors",
    "pytorch_model.bin",
    "pytorch_model-*.bin",
)
"""Names of weight files in folders of open_clip and transformers; the first that exists counts."""
_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WORDS = ("tokenizer.json", "vocab.txt")
"""Names of the files with the words of a tokenizer of transformers."""

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class KnownWeights(Frozen):
    """Weights of a model, as `fedray get` fetches them."""

    name: str
    """The name for `fedray get`."""
    title: str
    """The name in texts."""
    used_as: Texts
    """How experiments name them: a model's name, or KEY=NAME of a component whose default they
    are."""
    files: Texts = ()
    """The files in the hub's repository, with wildcards."""
    bytes: int | None = None
    """The size of the weight file, about; None if unknown."""
    package: str | None = None
    """The Python package that holds them instead of the hub."""
    origin: Origin
    """Where they come from."""

    @property
    def is_here(self) -> bool:
        """True if the weights are in the hub's cache, or their package is installed."""
        if self.package is not None:
            return find_spec(self.package) is not None
        repo = str(self.origin.hub)
        has_texts = "*.txt" not in self.files or (
            is_cached(repo, "config.json") and any(is_cached(repo, name) for name in _WORDS)
        )
        return has_texts and is_cached(repo)


@cache
def known_weights() -> dict[str, KnownWeights]:
    """Return the described weights by name."""
    tree = parse_yaml(_FILE.read_text(encoding="utf-8"), str(_FILE))
    return {name: KnownWeights(name=name, **entry) for name, entry in tree.items()}


def find_weights(name: str) -> KnownWeights | None:
    """Return the weights of this name, or that experiments name like this; None if unknown."""
    described = known_weights().values()
    return next((one for one in described if name in (one.name, *one.used_as)), None)


def hub_cache() -> Path:
    """Return the hub's cache folder."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def is_cached(repo: str, file: str | None = None) -> bool:
    """Return True if a file, by default any weight file, of OWNER/NAME is in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    names = (*WEIGHTS, *_INDICES) if file is None else (file,)
    return any(isinstance(try_to_load_from_cache(repo, name), str) for name in names)
