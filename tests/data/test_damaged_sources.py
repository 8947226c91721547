"""The door of data folders: whatever is wrong is one line that names the file or the key."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import (
    described,
    encode,
    structs,
    write_aircraft,
    write_fashion_mnist,
    write_names,
    write_table,
)
from lab import refused
from PIL import Image

from fedray.data import ReadOptions, load_images
from fedray.data.listing import check_names
from fedray.data.sources import sources


def encoded(kind="PNG", mode="RGB", size=(8, 8), **options) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return encode(Image.fromarray(values).convert(mode), kind, **options)


PNG = encoded()

# --- one small data set of each source -----------------------------------------------------------


def parquet(root: Path) -> None:
    for split in ("train", "test"):
        table(root / f"{split}-0.parquet", metadata=described(["cat", "dog"]))


def table(path: Path, images=None, labels=(0, 1, 0), metadata=None, **columns) -> None:
    images = structs([PNG] * len(labels)) if images is None else images
    write_table(path, {"image": images, "label": pa.array(labels), **columns}, metadata)


def image_folder(root: Path) -> None:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(2):
            (root / name / f"{i}.png").write_bytes(PNG)


def domain_folder(root: Path) -> None:
    for domain in ("amazon", "webcam"):
        image_folder(root / domain)


def mask_folder(root: Path) -> None:
    for split in ("train", "test"):
        (root / "x" / split / "images").mkdir(parents=True)
        (root / "x" / split / "masks").mkdir()
        (root / "x" / split / "images" / "0.png").write_bytes(PNG)
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(root / "x" / split / "masks" / "0.png")
    (root / "classes.json").write_text('["background", "cat"]')


def coop(root: Path) -> None:
    split = {"train": [], "val": [], "test": []}
    for i, part in enumerate(split):
        for label, name in enumerate(("cat", "dog")):
            (root / "images").mkdir(parents=True, exist_ok=True)
            (root / "images" / f"{name}{i}.png").write_bytes(PNG)
            split[part].append([f"{name}{i}.png", label, name])
    (root / SPLIT).write_text(json.dumps(split))


MAKERS = {
    "parquet": parquet,
    "image_folder": image_folder,
    "domain_folder": domain_folder,
    "mask_folder": mask_folder,
    "coop": coop,
    "coop aircraft": write_aircraft,
    "torchvision_fashion_mnist": write_fashion_mnist,
}
INFO, TABLE, PICTURE = "dataset_info.json", "train-0.parquet", "cat/0.png"
SPLIT, RAW = "split_zhou_OxfordPets.json", "FashionMNIST/raw"
MASK, MASKED = "x/train/masks/0.png", "x/train/images/0.png"

# --- a file and its damage -----------------------------------------------------------------------


def flip(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0xFF
    path.write_bytes(changed)


def in_place(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(path: Path) -> None:
        path.unlink()
        make(path)

    return replaced


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "flipped": flip,
    "missing": Path.unlink,
    "pipe": in_place(os.mkfifo),
    "folder": in_place(Path.mkdir),
    "dangling": in_place(lambda path: path.symlink_to("/nowhere/at/all")),
    "loop": in_place(lambda path: path.symlink_to(path.name)),
}
FILES = [
    ("parquet", TABLE, "empty torn pipe dangling", TABLE),
    ("image_folder", PICTURE, "empty torn flipped pipe folder dangling loop", PICTURE),
    ("domain_folder", "amazon/cat/0.png", "pipe", "amazon/cat/0.png"),
    ("mask_folder", "classes.json", "empty missing pipe", "classes.json"),
    ("mask_folder", MASK, "torn pipe", "0.png"),
    ("mask_folder", MASKED, "missing pipe", "images"),
    ("coop", SPLIT, "empty torn", SPLIT),
    ("coop", "images/cat0.png", "missing pipe", "cat0.png"),
    ("coop aircraft", "variants.txt", "pipe", "variants.txt"),
    ("coop aircraft", "images_variant_val.txt", "missing", "images_variant_val.txt"),
    ("torchvision_fashion_mnist", f"{RAW}/t10k-labels-idx1-ubyte", "pipe folder", RAW),
]
"""Source, file, damages, and what is named."""


def loaded(source: str, root: Path) -> None:
    load_images(source.split()[0], root)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("source", "file", "damage", "named"),
    [(s, file, damage, named) for s, file, damages, named in FILES for damage in damages.split()],
)
def test_a_damaged_file(tmp_path, cache, source, file, damage, named):
    root = tmp_path / "oxford_pets"
    MAKERS[source](root)
    DAMAGES[damage](root / file)
    refused(lambda: loaded(source, root), named)
    assert not [path for path in (cache / "images").glob("*") if path.is_dir()]


# --- a file and its content ----------------------------------------------------------------------


def bomb(pixels: int) -> bytes:
    """A PNG whose header promises so many pixels a side, and that holds none."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    return PNG[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + PNG[33:]


def animated(kind: str) -> bytes:
    second = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    return encoded(kind, save_all=True, append_images=[second])


def idx(*numbers: int, rest: bytes = b"") -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers) + rest


CONTENTS: list[tuple[str, str, bytes | str, str]] = [
    ("parquet", INFO, "{", INFO),
    ("parquet", INFO, '{"class_names": [1, 2]}', INFO),
    ("parquet", INFO, r'{"class_names": ["a", "\ud800"]}', INFO),
    ("parquet", INFO, '{"class_names": ["a", " "]}', "class 1"),
    ("image_folder", PICTURE, bomb(30_000), PICTURE),
    ("image_folder", PICTURE, animated("GIF"), PICTURE),
    ("image_folder", PICTURE, animated("PNG"), PICTURE),
    ("image_folder", PICTURE, encode(Image.fromarray(np.zeros((8, 8), np.uint16))), PICTURE),
    ("image_folder", PICTURE, encoded("TIFF", "F"), PICTURE),
    ("image_folder", PICTURE, encoded(size=(8, 6)), "data.image_size"),
    ("mask_folder", "classes.json", b'["caf\xe9", "dog"]', "classes.json"),
    ("mask_folder", "classes.json", '["one"]', "classes.json"),
    ("mask_folder", "classes.json", '{"a": 1}', "classes.json"),
    ("mask_folder", MASK, PNG, "0.png"),
    ("mask_folder", MASK, encoded(mode="L", size=(9, 8)), "0.png"),
    ("mask_folder", MASK, encoded(mode="L"), "0.png"),
    ("coop", SPLIT, "<html>", SPLIT),
    ("coop", SPLIT, '{"train": {}, "val": [], "test": []}', "train"),
    ("coop", SPLIT, '{"train": [], "test": []}', "val"),
    ("coop", SPLIT, '{"train": [], "val": [], "test": []}', "no images"),
    ("coop aircraft", "variants.txt", b"caf\xe9\n", "variants.txt"),
    ("coop aircraft", "variants.txt", "707-320\n707-320\nCessna 172\n", "variants.txt"),
    ("coop aircraft", "images_variant_val.txt", "10 Concorde\n", "images_variant_val.txt"),
    ("torchvision_fashion_mnist", f"{RAW}/train-images-idx3-ubyte", idx(2051, 9, 28, 28), RAW),
    ("torchvision_fashion_mnist", f"{RAW}/train-images-idx3-ubyte", idx(2051, 0, 28, 28), RAW),
    ("torchvision_fashion_mnist", f"{RAW}/train-labels-idx1-ubyte", idx(2049, 3, rest=b"abc"), RAW),
    (
        "torchvision_fashion_mnist",
        f"{RAW}/train-labels-idx1-ubyte",
        idx(2049, 4, rest=b"\x00\x01\x02\x0a"),
        "image 3",
    ),
]
"""Source, file, content, and what is named."""


@pytest.mark.parametrize(("source", "file", "content", "named"), CONTENTS)
def test_a_file_with_another_content(tmp_path, source, file, content, named):
    root = tmp_path / "oxford_pets"
    MAKERS[source](root)
    (root / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(lambda: loaded(source, root), named)


ROWS = [
    ("train", ["../a.png", 0, "cat"], "train.2.0"),
    ("train", [[[[[]]]]], "train.2.0"),
    ("train", ["a.png", "0", "cat"], "train.2.1"),
    ("test", ["a", None, "cat"], "test.2.1"),
    ("test", ["a.png", -1, "cat"], "test.2.1"),
    ("test", "a.png", "test.2"),
    ("test", ["cat0.png", 0, "cat"], SPLIT),
    ("test", ["dog2.png", 1, "golf"], SPLIT),
    ("test", ["gone.png", 1, "dog"], "gone.png"),
    ("train", ["cat9.png", 2, "cat"], SPLIT),
    ("train", ["cat9.png", 10**30, "cat"], SPLIT),
    ("train", ["guinea.png", 2, "guinea_pig"], "guinea.png"),
]
"""Part of CoOp's split file, a row more, and what is named."""


@pytest.mark.parametrize(("part", "row", "named"), ROWS)
def test_a_wrong_row_of_coops_split(tmp_path, part, row, named):
    root = tmp_path / "oxford_pets"
    coop(root)
    split = json.loads((root / SPLIT).read_text())
    split[part].append(row)
    (root / SPLIT).write_text(json.dumps(split))
    refused(lambda: load_images("coop", root), named)


# --- rows of a table -----------------------------------------------------------------------------

NAMES = '{"info": {"features": {"label": {"names": %s}}}}'
COLUMNS = [
    ({"labels": [0, None, 1]}, f"{TABLE}, row 1"),
    ({"labels": [0, 2, 1]}, f"{TABLE}, row 1"),
    ({"labels": [0, -1, 1]}, f"{TABLE}, row 1"),
    ({"labels": [True, False]}, "row 0"),
    ({"images": [PNG, None, PNG]}, f"{TABLE}, row 1"),
    ({"images": ["a.png", "b.png", "c.png"]}, f"{TABLE}, row 0"),
    ({"images": [{"path": "a.png"}] * 3}, f"{TABLE}, row 0"),
    ({"images": [{"bytes": None, "path": "a"}] * 3}, f"{TABLE}, row 0"),
    ({"images": [PNG, b"", PNG]}, f"{TABLE}, row 1"),
    ({"images": [], "labels": pa.array([], pa.int64())}, "cat, dog"),
    ({"domain": [1, 2, 3]}, "row 0"),
    ({"domain": ["a", None, "b"]}, "row 1"),
    ({"metadata": {"huggingface": "{"}}, TABLE),
    ({"metadata": {"huggingface": '{"info": [1]}'}}, INFO),
    ({"metadata": {"huggingface": NAMES % '"ab"'}}, TABLE),
    ({"metadata": {"huggingface": NAMES % '["a", "a"]'}}, "'a'"),
    ({"metadata": described(["dog", "cat"])}, "names"),
]
"""What the training rows of a parquet data set are, and what is named."""


@pytest.mark.parametrize(("columns", "named"), COLUMNS)
def test_a_wrong_row_of_a_table(tmp_path, columns, named):
    parquet(tmp_path)
    if "metadata" not in columns:
        write_names(tmp_path)
    elif "names" not in named:  # else the other file contradicts it
        (tmp_path / "test-0.parquet").unlink()
    table(tmp_path / TABLE, **columns)
    refused(lambda: load_images("parquet", tmp_path), named)


def repeated_column(root: Path) -> None:
    images = pa.array([{"bytes": PNG, "path": None}])
    schema = pa.schema([("image", images.type), ("label", pa.int64()), ("label", pa.int64())])
    columns = pa.Table.from_arrays([images, [0], [1]], schema=schema)
    pq.write_table(columns, root / "train-a.parquet")
    write_names(root)


FOLDERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("parquet", lambda root: [path.unlink() for path in root.iterdir()], "parquet"),
    ("parquet", repeated_column, "train-a.parquet"),
    ("parquet", lambda root: pq.write_table(pa.table({"x": [1]}), root / "train-a.parquet"), "x"),
    ("parquet", lambda root: (root / "more.parquet").symlink_to(root / TABLE), "more.parquet"),
    ("image_folder", lambda root: [path.unlink() for path in root.glob("cat/*")], "cat"),
    ("image_folder", lambda root: (root / "eel").mkdir(), "eel"),
    ("image_folder", lambda root: (root / "eel").symlink_to(root), "eel"),
    ("domain_folder", lambda root: (root / "amazon/cat").rename(root / "amazon/Cat"), "Cat, cat"),
    ("mask_folder", lambda root: (root / "y").symlink_to("gone"), "y"),
    ("mask_folder", lambda root: shutil.rmtree(root / "x/train/masks"), "masks"),
    ("mask_folder", lambda root: (root / "x/train").rename(root / "x/learn"), "x/learn"),
    ("mask_folder", lambda root: (root / "x").rename(root / ".x"), "no images"),
]
"""Source, change of the folder, and what is named."""


@pytest.mark.parametrize(("source", "change", "named"), FOLDERS)
def test_a_folder_with_another_content(tmp_path, source, change, named):
    MAKERS[source](tmp_path / "root")
    change(tmp_path / "root")
    refused(lambda: loaded(source, tmp_path / "root"), named)


@pytest.mark.parametrize("source", [name for name in MAKERS if "torchvision" not in name])
def test_the_same_sets_without_damage_are_read(tmp_path, source):
    MAKERS[source](tmp_path / "root")
    images = load_images(source.split()[0], tmp_path / "root")
    assert images.shape == (3, 8, 8)
    assert set(images.labels.tolist()) <= {0, 1}


# --- the user's split, and what else may not be trusted ------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "split.json"),
        ("{", "split.json"),
        ("null", "split.json"),
        ("[]", "split.json"),
        ('{"train": ["cat/0.png"]}', "test"),
        ('{"train": [], "test": {}}', "test"),
        ('{"train": [["cat/0.png"]], "test": []}', "train.0"),
        ('{"train": ["cat/0.png", "7.png"], "test": ["cat/1.png", "8.png"]}', "7.png"),
        ('{"train": ["cat/0.png"], "test": ["cat/0.png"]}', "cat/0.png"),
        ('{"train": ["cat/0.png"], "test": []}', "cat/1.png"),
        (os.mkfifo, "split.json"),
        (Path.mkdir, "split.json"),
        (lambda path: path.symlink_to("gone"), "split.json"),
        (lambda path: (path.touch(), os.truncate(path, 2**33)), "split.json"),
    ],
)
def test_a_wrong_split_file(tmp_path, text, named):
    image_folder(tmp_path)
    path = tmp_path / "split.json"
    path.write_text(text) if isinstance(text, str) else text(path)
    refused(lambda: load_images("image_folder", tmp_path, ReadOptions(split="split.json")), named)


@pytest.mark.parametrize("make", [image_folder, mask_folder])
def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch, make):
    make(tmp_path)
    for name in ("scandir", "listdir"):
        allowed = getattr(os, name)

        def list_(path=".", allowed=allowed):
            if str(path).startswith(str(tmp_path)):
                raise PermissionError(13, "Permission denied", str(path))
            return allowed(path)

        monkeypatch.setattr(os, name, list_)
    refused(lambda: load_images(make.__name__, tmp_path), str(tmp_path))


def test_kinds_of_images_that_are_read(tmp_path):
    image_folder(tmp_path)
    kinds = ["GIF RGB", "PNG P", "PNG 1", "PNG LA", "PNG RGBA", "JPEG CMYK", "TIFF RGB"]
    for kind, mode in map(str.split, kinds):
        (tmp_path / "dog" / f"mode_{mode}.{kind.lower()[:4]}").write_bytes(encoded(kind, mode))
    camera = encoded("MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    (tmp_path / "dog" / "9.jpg").write_bytes(camera)  # with a second picture, as cameras write it
    assert load_images("image_folder", tmp_path).images.shape == (4 + len(kinds) + 1, 3, 8, 8)


def test_pickles_that_are_not_torchvisions_are_not_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "was run"),))

    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name in ("batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        (batches / name).write_bytes(pickle.dumps(Evil()))
    refused(lambda: load_images("torchvision_cifar10", tmp_path), "cifar-10-batches-py")
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize("edit", ["content", "time"])
def test_an_edited_source_is_decoded_anew(tmp_path, edit):
    image_folder(tmp_path)
    before = load_images("image_folder", tmp_path)
    changed = encoded(compress_level=0) if edit == "time" else encoded(mode="L")
    (tmp_path / "cat" / "0.png").write_bytes(changed)
    after = load_images("image_folder", tmp_path)
    assert (after.sha256 == before.sha256) == (edit == "time")


def test_files_that_change_while_they_are_read_are_refused(tmp_path, cache, monkeypatch):
    image_folder(tmp_path)
    kind = sources.get("image_folder")
    read = kind.read

    def meddled(self, *of):
        found = read(self, *of)
        (tmp_path / "cat" / "1.png").write_bytes(encoded("BMP"))
        return found

    monkeypatch.setattr(kind, "read", meddled)
    refused(lambda: load_images("image_folder", tmp_path), str(tmp_path))
    assert not [path for path in (cache / "images").iterdir() if path.is_dir()]


def test_names_of_classes():
    check_names(["a", "A", "a b"], "here")
    wrong = {"class 2": ["a", "b", "a"], "class 1": ["a", ""], "udc80": ["\udc80"]}
    for named, names in wrong.items():
        refused(lambda names=names: check_names(names, "here"), named)
