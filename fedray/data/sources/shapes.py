"""Synthetic images with masks: coloured shapes on textures, in four styles, without download."""

from __future__ import annotations

from colorsys import hsv_to_rgb
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.data.decoding import ReadOptions
from fedray.data.imageset import TEST, TRAIN
from fedray.data.sources import Listing, Row, Source, sources

_NAMES = ("background", "circle", "square", "triangle", "cross")
_STYLES = ("paper", "night", "stripes", "chessboard")
_TRAIN, _TEST = 160, 40
_SMALLEST = 16
_PAINTS = {
    "paper": (0.0, 0.9, 0.7),
    "night": (0.05, 0.6, 1.0),
    "stripes": (-0.05, 1.0, 1.0),
    "chessboard": (0.1, 0.7, 0.7),
}
"""Hue shift, saturation and highest value (in HSV) of each style."""

Floats = NDArray[np.float64]


@sources.add
class Shapes(Source):
    """Synthetic coloured shapes with masks in four styles: 800 RGB images of 32x32, no download.

    160 training and 40 test images of each style, with one to three shapes each; always the same.
    Styles are domains of the same task. A shape's class is its outline. Each class has a typical
    hue, which styles shift, so that circles of one style may have the colour of squares of another.
    Background, brightness and noise depend on the style. An image's label is its dominant shape.
    Images are RGB with 32 pixels by default; grey images show outlines only.
    """

    name = "shapes"
    reads_root = False

    def find_root(self, root: Path | None, *, download: bool) -> Path:
        """Return this module's folder, because images are generated, not read."""
        return Path(__file__).parent

    def files(self, root: Path, options: ReadOptions) -> list[Path]:
        """Return this module, so that a changed module invalidates the cached images."""
        return [Path(__file__)]

    def listing(self, root: Path, options: ReadOptions) -> Listing:
        """Draw all images."""
        size = options.image_size or 32
        if size < _SMALLEST:
            raise UserError(
                f"data.image_size={size} is too small for data.source=shapes, which needs at "
                f"least {_SMALLEST}; raise it"
            )
        rng = np.random.default_rng(0)
        rows = []
        for style in _STYLES:
            for number in range(_TRAIN + _TEST):
                image, mask = _draw(style, size, rng)
                grey_or_colour = (
                    image.mean(0) if options.channels == 1 else image.transpose(1, 2, 0)
                )
                pixels = np.ascontiguousarray(np.rint(grey_or_colour * 255).astype(np.uint8))
                origin = TRAIN if number < _TRAIN else TEST
                rows.append(Row(pixels, 0, origin, style, mask, f"{style} {number}"))
        return Listing(_NAMES, rows, _STYLES)


def _draw(style: str, size: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.uint8]]:
    """Draw an image [3, size, size] in [0, 1] and its mask uint8 [size, size]."""
    image, noise = _background(style, size, rng)
    mask = np.zeros((size, size), np.uint8)
    for _ in range(rng.integers(1, 4)):
        kind = int(rng.integers(1, len(_NAMES)))
        inside = _outline(_NAMES[kind], size, rng)
        mask[inside] = kind
        image[:, inside] = _colour(style, kind, rng)[:, None]
    image += noise * rng.standard_normal(image.shape)
    return image.clip(0, 1), mask


def _background(style: str, size: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """Draw a style's background [3, size, size]; return also the deviation of its noise."""
    y, x = np.mgrid[:size, :size] / size
    if style == "paper":
        pattern, noise = 0.1 * np.sin(6 * (x * rng.random() + y * rng.random())), 0.03
        dark, light = np.full(3, 0.85), np.full(3, 0.95)
    elif style == "night":
        pattern, noise = x * rng.random() + y * rng.random(), 0.08
        dark, light = np.array([0.02, 0.02, 0.05]), np.array([0.1, 0.1, 0.25])
    elif style == "stripes":
        angle = rng.random() * np.pi
        waves = np.sin(2 * np.pi * (6 * (x * np.cos(angle) + y * np.sin(angle)) + rng.random()))
        pattern, noise = np.asarray(waves > 0, np.float64), 0.04
        dark, light = rng.uniform(0.3, 0.45, 3), rng.uniform(0.5, 0.65, 3)
    else:
        cells = np.floor(5 * x + rng.random()) + np.floor(5 * y + rng.random())
        pattern, noise = cells % 2, 0.04
        dark, light = rng.uniform(0.0, 0.25, 3), rng.uniform(0.75, 1.0, 3)
    return dark[:, None, None] + (light - dark)[:, None, None] * pattern, noise


def _colour(style: str, kind: int, rng: np.random.Generator) -> Floats:
    """Draw the colour [3] of a shape of class `kind` in a style."""
    shift, saturation, value = _PAINTS[style]
    hue = (kind - 1) / (len(_NAMES) - 1) + shift + rng.uniform(-0.13, 0.13)
    return np.array(hsv_to_rgb(hue % 1, saturation, value * rng.uniform(0.8, 1)))


def _outline(name: str, size: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw the pixels [size, size] inside a shape of random position, size and rotation."""
    radius = rng.uniform(0.18, 0.3)
    centre = rng.uniform(radius, 1 - radius, 2)
    angle = rng.uniform(-0.5, 0.5)
    y, x = (np.mgrid[:size, :size] + 0.5) / size - centre[:, None, None]
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    if name == "circle":
        inside = u**2 + v**2 <= 0.75
    elif name == "square":
        inside = np.maximum(abs(u), abs(v)) <= 0.75
    elif name == "triangle":
        inside = np.maximum(v, abs(u) * np.sqrt(3) / 2 - v / 2) <= 0.55
    else:
        inside = (np.minimum(abs(u), abs(v)) <= 0.28) & (np.maximum(abs(u), abs(v)) <= 1)
    return np.asarray(inside)
