"""The node's cache of image features of a frozen vision tower: computed once and mapped."""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.data.imageset import ImageSet
from fedray.models.clip.frozen import FrozenClip
from fedray.models.inputs import ImageFeatures, Inputs, PatchFeatures, Pixels
from fedray.storage.cache import Arrays, content_key, kept_arrays

_BATCH = 128
_STAGES: dict[type[Inputs], str] = {ImageFeatures: "features", PatchFeatures: "patches"}


def frozen_features(
    clip: FrozenClip,
    images: ImageSet,
    rows: NDArray[np.int64],
    kind: type[Inputs],
    device: torch.device,
) -> NDArray[np.float32]:
    """Return features of some images from a vision tower without prompts.

    The cache key consists of the CLIP's identity, the images' content and rows, the kind of
    features, and what affects rounding: versions of open_clip and torch, the processor, the kind of
    GPU.

    Args:
        clip: the CLIP, on `device`.
        images: the images.
        rows: int64 [n], the rows of the images to use.
        kind: `ImageFeatures` [n, d] or `PatchFeatures` [n, M, d], float32, mapped read-only.
        device: the device that computes the features.
    """
    chosen = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
    packages = [importlib.metadata.version("open_clip_torch"), torch.__version__]
    kind_of_device = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    arithmetic = [*packages, torch.backends.cpu.get_cpu_capability(), kind_of_device]
    name = content_key(clip.identity, images.sha256, chosen, _STAGES[kind], arithmetic)
    vision, of_image = clip.vision, kind is ImageFeatures
    shape = (len(rows), vision.dim) if of_image else (len(rows), vision.patches, vision.dim)

    def make(arrays: Arrays) -> None:
        features = arrays.allocate("features", shape, np.float32)
        with torch.no_grad(), _one_thread():
            for start in range(0, len(rows), _BATCH):
                batch = rows[start : start + _BATCH]
                pixels = Pixels.of(torch.from_numpy(images.images[batch]).to(device))
                image, patches = vision.encode(vision.embed(pixels.values))
                part = image if of_image else patches
                features[start : start + len(batch)] = part.float().cpu().numpy()

    return kept_arrays("features", name, "frozen features", make).arrays["features"]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, because rounding depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
