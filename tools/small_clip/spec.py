"""What a small CLIP is trained on, and how: typed, from YAML and dotted overrides."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedray.config import (
    Chosen,
    Component,
    Frozen,
    PathText,
    Seed,
    Temperature,
    default_entry,
    find_yaml,
    override,
    parse_assignments,
    read_mapping,
    resolve_root,
    validate,
)
from fedray.language.encoders.bert import BertTextChoice

FOLDER = Path(__file__).parent
EXECUTION = ("held_out", "workers", "threads", "gpus")
"""Keys that do not change the weights."""


class ImagesSpec(Frozen):
    """One set of labelled images."""

    source: Annotated[Component, Chosen("data source")] = default_entry("parquet")
    """A data source of fedray: parquet, image_folder, digits, ..."""
    root: PathText | None = None
    """Its folder; a relative path is looked up below $FEDRAY_DATA, then here."""
    repeat: int = Field(1, ge=1)
    """Training only: how often an epoch sees every image."""

    @property
    def name(self) -> str:
        """The name of the set in the scores."""
        return self.source.name if self.root is None else Path(self.root).name


class TextSpec(Frozen):
    """The text tower and its distillation data."""

    teacher: Annotated[Component, Chosen("text encoder")] = default_entry("minilm")
    """The teacher: a text encoder with word pieces, minilm or bert."""
    pieces: int = Field(9000, ge=64)
    """Word pieces of the teacher that are kept, besides those that the captions need."""
    words: int = Field(12000, ge=0)
    """Whole words of the teacher that are distilled as texts."""
    pairs: int = Field(4000, ge=0)
    """Random pairs of these words that are distilled."""
    descriptions: tuple[str, ...] = ()
    """Files of class descriptions whose sentences are distilled."""
    context_length: int = Field(32, ge=8)
    width: int = Field(128, ge=8)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    epochs: int = Field(6, ge=1)
    batch_size: int = Field(256, ge=2)
    """Texts per step, over all workers."""
    lr: float = Field(2e-3, gt=0)
    """Peak learning rate."""
    temperature: Temperature = 0.07
    """Temperature of the softmax over a batch's teacher vectors."""

    @model_validator(mode="after")
    def _possible(self) -> TextSpec:
        if not isinstance(self.teacher.build(), BertTextChoice):
            raise ValueError(f"teacher={self.teacher.name} has no word pieces; use minilm or bert")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} is no multiple of heads={self.heads}")
        return self

    @property
    def teacher_choice(self) -> BertTextChoice[Any]:
        """The teacher, before its weights are loaded."""
        choice = self.teacher.build()
        assert isinstance(choice, BertTextChoice)
        return choice


class ImageSpec(Frozen):
    """The image tower and its training."""

    size: int = Field(32, ge=8)
    """Pixels per side."""
    patch: int = Field(8, ge=2)
    """Pixels per side of a patch."""
    width: int = Field(192, ge=8)
    layers: int = Field(6, ge=1)
    head_width: int = Field(64, ge=4)
    epochs: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=2)
    """Images per step, over all workers."""
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    augment: Annotated[Component, Chosen("augmentation")] = default_entry(
        {"name": "resized_crop", "scale_min": 0.5}
    )
    """An augmentation of fedray."""
    scale: float = Field(20.0, gt=0)
    """Factor of the cosines in the softmax; the model's logit scale."""

    @model_validator(mode="after")
    def _divides(self) -> ImageSpec:
        for key, unit in (("size", "patch"), ("width", "head_width")):
            whole, part = getattr(self, key), getattr(self, unit)
            if whole % part:
                raise ValueError(f"{key}={whole} is no multiple of {unit}={part}")
        return self


class Spec(Frozen):
    """One small CLIP, complete."""

    train: tuple[ImagesSpec, ...] = Field(min_length=1)
    """Data sets whose official training images are used."""
    held_out: tuple[ImagesSpec, ...] = ()
    """Sets on whose official test images zero-shot accuracy is measured."""
    embed_dim: int = Field(256, ge=8)
    """Width of the joint space."""
    text: TextSpec = TextSpec()
    image: ImageSpec = ImageSpec()
    weight_decay: float = Field(0.02, ge=0)
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Arithmetic of training; bfloat16 is autocast with float32 weights."""
    seed: Seed = 0
    workers: int = Field(1, ge=0)
    """Ray Train workers; 0 trains in this process."""
    threads: int = Field(1, ge=1)
    """Threads of one worker."""
    gpus: int = Field(0, ge=0, le=1)
    """GPUs of one worker."""

    @model_validator(mode="after")
    def _shares(self) -> Spec:
        for key in ("text", "image"):
            size = getattr(self, key).batch_size
            if self.workers and size % self.workers:
                raise ValueError(
                    f"{key}.batch_size={size} is no multiple of workers={self.workers}"
                )
        return self

    def same_weights(self, other: Spec) -> bool:
        """Return True if both train the same weights, up to rounding."""
        mine, theirs = (spec.model_dump(exclude=set(EXECUTION)) for spec in (self, other))
        return mine == theirs


def load_spec(name: str, assignments: Iterable[str]) -> Spec:
    """Read a YAML file, or small.yaml by its name; apply overrides; make paths absolute.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    tree = read_mapping(find_yaml(name, [FOLDER], "configuration"))
    spec = validate(Spec, override(tree, parse_assignments(assignments)))
    roots = {key: tuple(map(_absolute, getattr(spec, key))) for key in ("train", "held_out")}
    return spec.model_copy(update=roots)


def _absolute(images: ImagesSpec) -> ImagesSpec:
    if images.root is None:
        return images
    return images.model_copy(update={"root": str(resolve_root(images.root))})
