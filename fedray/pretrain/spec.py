"""What a small CLIP is trained on and how: typed, from YAML and dotted overrides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, StrictBool, model_validator

from fedray.config import (
    Component,
    FileName,
    Frozen,
    PathText,
    Seed,
    Temperature,
    Tree,
    completed,
    find_yaml,
    override,
    parse_assignments,
    read_mapping,
    resolve_root,
    validate,
)
from fedray.language.encoders import encoder_choice
from fedray.language.encoders.bert import WordPieceChoice

FOLDER = Path(__file__).parent
_TEACHER = "text.teacher"


class ImagesConfig(Frozen):
    """One set of labelled images."""

    source: Component = Component(name="parquet")
    """A data source: parquet, image_folder, digits, ..."""
    root: PathText | None = None
    """Its folder; a relative path is looked up below $FEDRAY_DATA, then here."""
    repeat: int = Field(1, ge=1, le=10_000)
    """Training only: how often an epoch sees every image."""


class TextConfig(Frozen):
    """The text tower and its distillation data."""

    teacher: Component = Component(name="minilm")
    """The teacher: a WordPiece encoder (minilm, bert)."""
    pieces: int = Field(9000, ge=64, le=10**6)
    """How many of the teacher's word pieces are kept, the first of its vocabulary, besides those
    that the captions need."""
    words: int = Field(12000, ge=0, le=10**6)
    """How many of the teacher's whole words are distilled as texts."""
    pairs: int = Field(4000, ge=0, le=10**7)
    """How many random pairs of these words are distilled."""
    descriptions: tuple[str, ...] = ()
    """Files of descriptions (language/descriptions) whose sentences are distilled."""
    context_length: int = Field(32, ge=8, le=512)
    """The most tokens that the tower reads."""
    width: int = Field(128, ge=8, le=8192)
    """Width of the text tower."""
    layers: int = Field(3, ge=1, le=256)
    """Blocks of the text tower."""
    heads: int = Field(4, ge=1, le=256)
    """Attention heads of the text tower."""
    epochs: int = Field(6, ge=1, le=10_000)
    """Passes over the texts."""
    batch_size: int = Field(256, ge=2, le=10**6)
    """Texts per step, over all workers."""
    lr: float = Field(2e-3, gt=0, le=1000)
    """Peak learning rate."""
    temperature: Temperature = 0.07
    """Of the softmax over a batch's teacher vectors."""

    @model_validator(mode="after")
    def _teacher_reads_pieces(self) -> TextConfig:
        if not isinstance(encoder_choice(self.teacher, _TEACHER), WordPieceChoice):
            raise ValueError(f"teacher={self.teacher.name} has no word pieces; use minilm or bert")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is no multiple of heads={self.heads}")
        return self

    @property
    def teacher_choice(self) -> WordPieceChoice[Any]:
        """The teacher, before its weights are loaded."""
        choice = encoder_choice(self.teacher, _TEACHER)
        assert isinstance(choice, WordPieceChoice)
        return choice


class ImageConfig(Frozen):
    """The image tower and its training."""

    size: int = Field(32, ge=8, le=224)
    """Pixels per side."""
    patch: int = Field(8, ge=2, le=224)
    """Pixels per side of a patch."""
    width: int = Field(192, ge=8, le=8192)
    """Width of the image tower."""
    layers: int = Field(6, ge=1, le=256)
    """Blocks of the image tower."""
    head_width: int = Field(64, ge=4, le=8192)
    """Width of an attention head."""
    epochs: int = Field(10, ge=1, le=10_000)
    """Passes over the images."""
    batch_size: int = Field(256, ge=2, le=10**6)
    """Images per step, over all workers."""
    lr: float = Field(1e-3, gt=0, le=1000)
    """Peak learning rate."""
    smallest_crop: float = Field(0.5, gt=0, le=1)
    """A view shows at least this share of the image's area."""
    flip: StrictBool = True
    """Whether views may be mirrored."""
    colour: float = Field(0.2, ge=0, le=1)
    """Strength of random brightness, contrast and saturation."""
    scale: float = Field(20.0, gt=0, le=1e4)
    """Factor of the cosines in the softmax; the model's logit scale."""
    kinds: float = Field(1.0, ge=0, le=1e6)
    """Weight of the losses over kinds; the one over names has weight 1."""

    @model_validator(mode="after")
    def _divides(self) -> ImageConfig:
        for key, unit in (("size", "patch"), ("width", "head_width")):
            whole, part = getattr(self, key), getattr(self, unit)
            if whole % part:
                raise ValueError(f"{key}={whole} is no multiple of {unit}={part}")
        return self


class PretrainConfig(Frozen):
    """One small CLIP, complete."""

    name: FileName = "clip"
    """What the model is called."""
    train: tuple[ImagesConfig, ...] = Field(min_length=1)
    """Data sets whose official training images are used."""
    held_out: tuple[ImagesConfig, ...] = ()
    """Sets on whose official test images zero-shot accuracy is measured; of a set that is also in
    `train`, only the test images are."""
    captions: StrictBool = True
    """Whether classes are captioned by captions.json; else by their names alone."""
    embed_dim: int = Field(256, ge=8, le=8192)
    """Width of the joint space."""
    text: TextConfig = TextConfig()
    image: ImageConfig = ImageConfig()
    weight_decay: float = Field(0.02, ge=0, le=1000)
    """Decoupled weight decay of matrices."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Arithmetic of training; bfloat16 is autocast with float32 weights."""
    seed: Seed = 0
    """Seed of every random stream."""
    workers: int = Field(1, ge=0, le=10_000)
    """Ray Train workers; 0 trains in this process."""
    threads: int = Field(1, ge=1, le=1024)
    """Threads of one worker."""
    gpus: int = Field(0, ge=0, le=1)
    """GPUs of one worker."""

    @model_validator(mode="after")
    def _shares(self) -> PretrainConfig:
        for key in ("text", "image"):
            size = getattr(self, key).batch_size
            if self.workers and size % self.workers:
                raise ValueError(
                    f"{key}.batch_size={size} is no multiple of workers={self.workers}"
                )
        return self

    def reproducibility_key(self) -> str:
        """A hash of all that determines the weights, without execution keys."""
        tree = self.model_dump(mode="json")
        for key in ("name", "held_out", "workers", "threads", "gpus"):
            tree.pop(key)
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def load_config(name: str, assignments: Iterable[str]) -> PretrainConfig:
    """Read a shipped configuration or a file, apply the overrides, make its paths absolute.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    tree: Tree = read_mapping(find_yaml(name, [FOLDER], "configuration"))
    config = validate(PretrainConfig, override(tree, parse_assignments(assignments)))
    update: dict[str, Any] = {
        key: tuple(_absolute(part) for part in getattr(config, key))
        for key in ("train", "held_out")
    }
    teacher = completed(config.text.teacher, "text encoder", _TEACHER)
    if teacher.params.get("path") is not None:
        path = str(Path(teacher.params["path"]).expanduser().absolute())
        teacher = Component(name=teacher.name, **{**teacher.params, "path": path})
    update["text"] = config.text.model_copy(update={"teacher": teacher})
    return config.model_copy(update=update)


def _absolute(images: ImagesConfig) -> ImagesConfig:
    if images.root is None:
        return images
    return images.model_copy(update={"root": str(resolve_root(images.root))})
