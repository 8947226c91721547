"""What a frozen vision tower makes of images: computed once per node, kept on disk, mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from fedray.data.cache import cache_folder
from fedray.data.imageset import ImageSet
from fedray.errors import UserError
from fedray.models.clip.frozen import FrozenClip
from fedray.models.clip.prompted import Stage
from fedray.models.pixels import to_float

__all__ = ["frozen_features"]

_FORMAT = 1
_BATCH = 128
_log = logging.getLogger(__name__)


def frozen_features(
    clip: FrozenClip, images: ImageSet, used: NDArray[np.int64], stage: Stage, device: torch.device
) -> NDArray[np.float32]:
    """Features of some images under a vision tower that no prompt enters.

    They lie in $FEDRAY_CACHE/features under a name made of the CLIP's identity, the images'
    content, which of them, the stage, and what decides rounding. Of several processes that ask at
    once, one computes and the others wait.

    Args:
        clip: on `device`, in float32.
        images: where the images are.
        used: int64 [n], which of them.
        stage: "features" or "patches".
        device: where they are computed.

    Returns:
        Image features [n, d] or patch features [n, M, d], float32, mapped read-only.

    Raises:
        UserError: when the cache cannot be written.
    """
    path = cache_folder() / "features" / f"{_key(clip, images, used, stage, device)}.npy"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                _log.info(
                    "computing the frozen features of %d images once into %s", len(used), path
                )
                _write(path, clip, images, used, stage, device)
    except OSError as error:
        raise UserError(
            f"frozen features cannot be written below {cache_folder()} ({error}); set "
            "FEDRAY_CACHE to a folder with room that can be written"
        ) from None
    mapped: NDArray[np.float32] = np.load(path, mmap_mode="r")
    return mapped


def _key(
    clip: FrozenClip,
    images: ImageSet,
    used: NDArray[np.int64],
    stage: Stage,
    device: torch.device,
) -> str:
    chosen = hashlib.sha256(used.astype("<i8").tobytes()).hexdigest()
    arithmetic = [torch.__version__, torch.backends.cpu.get_cpu_capability(), device.type]
    what = [_FORMAT, clip.identity, images.sha256, chosen, stage, arithmetic]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _write(
    path: Path,
    clip: FrozenClip,
    images: ImageSet,
    used: NDArray[np.int64],
    stage: Stage,
    device: torch.device,
) -> None:
    """Write part by part beside, then rename, so that a torn file is never read."""
    vision = clip.vision
    shape = (
        (len(used), vision.dim) if stage == "features" else (len(used), vision.patches, vision.dim)
    )
    made = path.with_suffix(".tmp.npy")
    kept = np.lib.format.open_memmap(made, "w+", np.float32, shape)
    with torch.no_grad(), _one_thread():
        for start in range(0, len(used), _BATCH):
            rows = used[start : start + _BATCH]
            batch = to_float(torch.from_numpy(images.images[rows]).to(device))
            kept[start : start + len(rows)] = _stage(vision.encode(vision.embed(batch)), stage)
    kept.flush()
    os.replace(made, path)


def _stage(encoded: tuple[Tensor, Tensor], stage: Stage) -> NDArray[np.float32]:
    features: NDArray[np.float32] = encoded[0 if stage == "features" else 1].float().cpu().numpy()
    return features


@contextmanager
def _one_thread() -> Iterator[None]:
    """The number of threads decides how sums round; the features must not depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
