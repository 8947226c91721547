"""Small data sets in the layouts that the sources read."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedray.data.imageset import TEST, TRAIN, Domains, ImageSet


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def filled(value: int, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> Image.Image:
    """One plain image of (width, height)."""
    width, height = size
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.full(shape, value, np.uint8))


def structs(images: Sequence[bytes]) -> list[dict[str, Any]]:
    """Encoded images as Hugging Face keeps them."""
    return [{"bytes": one, "path": f"{i}.png"} for i, one in enumerate(images)]


def described(names: Sequence[str], label: str = "label") -> dict[str, str]:
    """The metadata that names the classes of a parquet file."""
    features = {label: {"names": list(names), "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def write_table(path: Path, columns: dict[str, Any], metadata: dict[str, str] | None = None):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, path, write_page_checksum=True)


def write_names(root: Path, names: Sequence[str] = ("cat", "dog")) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset_info.json").write_text(json.dumps({"class_names": list(names)}))


def write_aircraft(root: Path) -> Path:
    """CoOp's FGVCAircraft, each image as bright as its place, in steps of 50 and 20."""
    (root / "images").mkdir(parents=True)
    (root / "variants.txt").write_text("707-320\nCessna 172\n")
    for i, part in enumerate(("train", "val", "test")):
        (root / f"images_variant_{part}.txt").write_text(f"00{i} Cessna 172\n01{i} 707-320\n")
        for j in range(2):
            filled(50 * i + 20 * j, (8, 8)).save(root / f"images/0{j}{i}.jpg")
    return root


def write_fashion_mnist(root: Path, counts: tuple[int, int] = (4, 2)) -> None:
    """torchvision's files; a pixel is the number of images of its split, labels are 0, 1, ..."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in zip(("train", "t10k"), counts, strict=True):
        pixels = np.full((count, 28, 28), count, np.uint8).tobytes()
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(head + pixels)
        head = struct.pack(">II", 0x801, count)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(head + bytes(range(count)))


def made(labels, origin=TRAIN, domains: Domains | None = None, seed: int = 0) -> ImageSet:
    """Grey images of 4x4 random pixels, with these labels and splits."""
    labels = np.asarray(labels, np.int64)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 1, 4, 4), dtype=np.uint8)
    names = tuple(f"class {c}" for c in range(labels.max() + 1))
    origins = np.array(np.broadcast_to(origin, len(labels)), np.int8)
    return ImageSet("made", pixels, labels, names, origins, domains)


def of_each_class(train: int, test: int, classes: int, domains: Domains | None = None) -> ImageSet:
    """So many training and test images of every class."""
    labels = np.repeat(np.arange(classes), train + test)
    return made(labels, np.tile([TRAIN] * train + [TEST] * test, classes), domains)
