"""Whatever is wrong with the user's files is one sentence that names the file: a table of cases."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import warnings
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
from PIL import Image

from fedray.base.errors import UserError
from fedray.data import ReadOptions, load_images
from fedray.data.listing import check_names
from fedray.data.sources import sources


def encoded(kind="PNG", mode="RGB", size=(8, 8), **options) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return encode(Image.fromarray(values).convert(mode), kind, **options)


PNG = encoded()
NOT_UTF8 = b'{"class_names": ["caf\xe9", "dog"]}'
BAD_JSON = r'{"class_names": ["a", "\ud800"]}'

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
    (root / "split_zhou_OxfordPets.json").write_text(json.dumps(split))


# --- damages -------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def at(name: str, damage: Callable[[Path], object]) -> Damage:
    """A damage of one of the files."""
    return lambda root: damage(root / name)


def without(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something else in a file's place."""

    def replaced(path: Path) -> None:
        path.unlink()
        damage(path)

    return replaced


def content(new: bytes | str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(new if isinstance(new, bytes) else new.encode())


def flip(place: float) -> Callable[[Path], object]:
    def flipped(path: Path) -> None:
        changed = bytearray(path.read_bytes())
        changed[int(place * len(changed))] ^= 0xFF
        path.write_bytes(changed)

    return flipped


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


pipe = without(os.mkfifo)
dangling = without(lambda path: path.symlink_to("/nowhere/at/all"))
loop = without(lambda path: path.symlink_to(path.name))
folder = without(Path.mkdir)
missing = Path.unlink


def meta(text: str) -> Damage:
    def damage(root: Path) -> None:
        for split in ("train", "test"):
            table(root / f"{split}-0.parquet", metadata={"huggingface": text})

    return damage


def rows(**columns) -> Damage:
    """Training rows like these; class names are known."""

    def damage(root: Path) -> None:
        write_names(root)
        table(root / "train-0.parquet", **columns)

    return damage


def repeated_column(root: Path) -> None:
    images = pa.array([{"bytes": PNG, "path": None}])
    schema = pa.schema([("image", images.type), ("label", pa.int64()), ("label", pa.int64())])
    pq.write_table(
        pa.Table.from_arrays([images, [0], [1]], schema=schema), root / "train-a.parquet"
    )
    write_names(root)


def nothing_but_a_table_without_rows(root: Path) -> None:
    (root / "test-0.parquet").unlink()
    rows(images=[], labels=pa.array([], pa.int64()))(root)


def link_to(target: str, name: str) -> Damage:
    return lambda root: (root / name).symlink_to(root / target)


def rewritten(edit: Callable[[dict], object]) -> Damage:
    def damage(root: Path) -> None:
        file = root / "split_zhou_OxfordPets.json"
        split = json.loads(file.read_text())
        edit(split)
        file.write_text(json.dumps(split))

    return damage


def added(part: str, row: object) -> Damage:
    return rewritten(lambda split: split[part].append(row))


def one_name_twice(split: dict) -> None:
    for part in split.values():
        part[0][2], part[1][2] = "guinea_pig", "guinea pig"


def idx(name: str, new: bytes) -> Damage:
    return lambda root: (root / "FashionMNIST" / "raw" / name).write_bytes(new)


def bomb(pixels: int) -> bytes:
    """A PNG whose header promises so many pixels a side, and that holds none."""
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return PNG[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + PNG[33:]


def animated(kind: str) -> bytes:
    second = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    return encoded(kind, save_all=True, append_images=[second])


def deep_png() -> bytes:
    """A grey PNG of 16 bits a channel."""
    return encode(Image.fromarray(np.zeros((8, 8), np.uint16)))


NAMES = '{"info": {"features": {"label": {"names": %s}}}}'
INFO, TABLE, PICTURE = "dataset_info.json", "train-0.parquet", "cat/0.png"
SPLIT, RAW = "split_zhou_OxfordPets.json", "FashionMNIST/raw"
Row = tuple[Damage, str]

PARQUET: list[Row] = [
    *[(at(TABLE, damage), TABLE) for damage in (pipe, dangling, content(b""), flip(0.1))],
    (lambda root: [path.unlink() for path in root.iterdir()], "parquet"),
    (rows(images=[], labels=pa.array([], pa.int64())), "cat, dog"),
    (nothing_but_a_table_without_rows, "no images"),
    *[(rows(labels=[0, label, 1]), f"{TABLE}, row 1") for label in (None, 2, -1)],
    (rows(labels=[True, False]), "row 0"),
    *[
        (rows(images=images), f"{TABLE}, row {row}")
        for row, images in (
            (1, [PNG, None, PNG]),
            (0, ["a.png", "b.png", "c.png"]),
            (0, [{"path": "a.png"}] * 3),
            (0, [{"bytes": None, "path": "a"}] * 3),
            (1, [PNG, b"", PNG]),
        )
    ],
    (rows(domain=[1, 2, 3]), "row 0"),
    (rows(domain=["a", None, "b"]), "row 1"),
    (repeated_column, "train-a.parquet"),
    (lambda root: pq.write_table(pa.table({"x": [1]}), root / "train-a.parquet"), "columns x"),
    (meta("{"), TABLE),
    (meta('{"info": [1]}'), INFO),
    (meta(NAMES % '"ab"'), TABLE),
    (meta(NAMES % '["a", "a"]'), "'a'"),
    (lambda root: table(root / "train-b.parquet", metadata=described(["dog", "cat"])), "names"),
    *[(at(INFO, content(text)), INFO) for text in ("{", '{"class_names": [1, 2]}', BAD_JSON)],
    (at(INFO, os.mkfifo), INFO),
    (at(INFO, content('{"class_names": ["a", " "]}')), "class 1"),
    (link_to("nowhere", "train-b.parquet"), "train-b.parquet"),
    (link_to(TABLE, "more.parquet"), "more.parquet"),
]
IMAGES: list[Row] = [
    *[
        (at(PICTURE, damage), PICTURE)
        for damage in (
            pipe,
            dangling,
            loop,
            folder,
            torn,
            flip(0.5),
            *map(content, (b"", bomb(30_000), animated("GIF"), animated("PNG"), deep_png())),
            content(encoded("TIFF", "F")),
        )
    ],
    (at(PICTURE, content(encoded(size=(8, 6)))), "data.image_size"),
    (lambda root: [(root / "cat" / f"{i}.png").unlink() for i in range(2)], "cat"),
    (lambda root: (root / "eel").mkdir(), "eel"),
    (link_to("nowhere", "eel"), "eel"),
    (link_to(".", "eel"), "eel"),
    (lambda root: (root / "cat").rename(os.fsdecode(os.fsencode(root) + b"/caf\xe9")), "class 0"),
]
MASKS: list[Row] = [
    *[
        (at("classes.json", damage), "classes.json")
        for damage in (pipe, missing, *map(content, (NOT_UTF8, '["one"]', '{"a": 1}', '["a", 1]')))
    ],
    *[
        (at("x/train/masks/0.png", damage), "0.png")
        for damage in (
            pipe,
            torn,
            *map(content, (PNG, encoded(mode="L", size=(9, 8)), encoded(mode="L"))),
        )
    ],
    *[(at("x/train/images/0.png", damage), "images") for damage in (pipe, missing)],
    (lambda root: (root / "y").symlink_to("gone"), "y"),
    (at("x/train/masks", shutil.rmtree), "masks"),
    (lambda root: (root / "x/train").rename(root / "x/learn"), "x/learn"),
    (lambda root: (root / "x").rename(root / ".x"), "holds no images"),
]
COOP: list[Row] = [
    (at(SPLIT, content("<html>")), SPLIT),
    (at(SPLIT, content('{"train": {}, "val": [], "test": []}')), "train"),
    (rewritten(lambda split: split.pop("val")), "val"),
    (added("train", [[[[[]]]]]), "train.2.0"),
    (added("test", ["a", None, "cat"]), "test.2.1"),
    (added("train", ["a.png", "0", "cat"]), "train.2.1"),
    (added("test", ["../a.png", 0, "cat"]), "test.2.0"),
    (added("test", ["a.png", -1, "cat"]), "test.2.1"),
    (added("test", "a.png"), "test.2"),
    (added("test", ["cat0.png", 0, "cat"]), SPLIT),
    (rewritten(lambda split: split["test"][0].__setitem__(2, "golf")), SPLIT),
    *[
        (
            rewritten(lambda split, n=n: [part[1].__setitem__(1, n) for part in split.values()]),
            SPLIT,
        )
        for n in (2, 10**30)
    ],
    (rewritten(lambda split: [part.clear() for part in split.values()]), "no images"),
    (added("test", ["gone.png", 1, "dog"]), "gone.png"),
    (rewritten(one_name_twice), "'guinea pig'"),
    (at("images/cat0.png", pipe), "cat0.png"),
]
AIRCRAFT: list[Row] = [
    (at("variants.txt", content(b"caf\xe9\n")), "variants.txt"),
    (at("variants.txt", content("707-320\n707-320\nCessna 172\n")), "variants.txt"),
    (at("variants.txt", pipe), "variants.txt"),
    (at("images_variant_val.txt", content("10 Concorde\n")), "images_variant_val.txt"),
    (at("images_variant_val.txt", missing), "images_variant_val.txt"),
]
TORCHVISION: list[Row] = [
    *[(at(f"{RAW}/t10k-labels-idx1-ubyte", damage), RAW) for damage in (pipe, folder)],
    (idx("train-images-idx3-ubyte", struct.pack(">IIII", 2051, 9, 28, 28)), RAW),
    (idx("train-images-idx3-ubyte", struct.pack(">IIII", 2051, 0, 28, 28)), RAW),
    (idx("train-labels-idx1-ubyte", struct.pack(">II", 2049, 3) + bytes(3)), RAW),
    (idx("train-labels-idx1-ubyte", struct.pack(">II", 2049, 4) + b"\x00\x01\x02\x0a"), "image 3"),
]
DOMAINS = [
    (at("amazon/cat/0.png", pipe), "amazon/cat/0.png"),
    (at("amazon/cat", lambda path: path.rename(path.with_name("Cat"))), "Cat, cat differ"),
]
CASES = [
    (source, make, damage, word)
    for source, make, damages in (
        ("parquet", parquet, PARQUET),
        ("image_folder", image_folder, IMAGES),
        ("domain_folder", domain_folder, DOMAINS),
        ("mask_folder", mask_folder, MASKS),
        ("coop", coop, COOP),
        ("coop", write_aircraft, AIRCRAFT),
        ("torchvision_fashion_mnist", write_fashion_mnist, TORCHVISION),
    )
    for damage, word in damages
]


def refused(load: Callable[[], object], word: str) -> None:
    """Assert that an error is one short line with this word; nothing is left to a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError) as caught:
            load()
    message = str(caught.value)
    assert word in message
    assert "\n" not in message
    assert len(message) < 800


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("source", "make", "damage", "word"), CASES)
def test_a_damaged_source_is_one_sentence(tmp_path, cache, source, make, damage, word):
    root = tmp_path / "oxford_pets"
    make(root)
    damage(root)
    refused(lambda: load_images(source, root), word)
    assert not [path for path in (cache / "images").glob("*") if path.is_dir()]


@pytest.mark.parametrize(
    "make", [parquet, image_folder, domain_folder, mask_folder, coop, write_aircraft]
)
def test_the_same_sets_without_damage_are_read(tmp_path, make):
    make(tmp_path / "root")
    name = "coop" if make is write_aircraft else make.__name__
    images = load_images(name, tmp_path / "root")
    assert images.shape == (3, 8, 8)
    assert set(images.labels.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        *[(text, "split.json") for text in ("", "{", NOT_UTF8, "null", "[]")],
        ('{"train": ["cat/0.png"]}', "test"),
        ('{"train": [], "test": {}}', "test"),
        ('{"train": [["cat/0.png"]], "test": []}', "train.0"),
        ('{"train": ["cat/0.png", "7.png"], "test": ["cat/1.png", "8.png"]}', "2 like '7.png'"),
        ('{"train": ["cat/0.png"], "test": ["cat/0.png"]}', "cat/0.png"),
        ('{"train": ["cat/0.png"], "test": []}', "3 like 'cat/1.png'"),
    ],
)
def test_a_damaged_split_file_is_one_sentence(tmp_path, text, word):
    image_folder(tmp_path)
    content(text)(tmp_path / "split.json")
    refused(lambda: load_images("image_folder", tmp_path, ReadOptions(split="split.json")), word)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**33)  # a hole


@pytest.mark.parametrize("place", [os.mkfifo, Path.mkdir, lambda p: p.symlink_to("gone"), huge])
def test_a_split_file_that_is_none(tmp_path, place):
    image_folder(tmp_path)
    place(tmp_path / "split.json")
    options = ReadOptions(split="split.json")
    refused(lambda: load_images("image_folder", tmp_path, options), "split.json")


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
    with pytest.raises(UserError, match=f"{tmp_path}.* cannot be (listed|read): Permission denied"):
        load_images(make.__name__, tmp_path)


def test_kinds_of_images_that_are_read(tmp_path):
    image_folder(tmp_path)
    modes = {"GIF": ["RGB"], "PNG": ["P", "1", "LA", "RGBA"], "JPEG": ["CMYK"], "TIFF": ["RGB"]}
    for kind, mode in [(kind, mode) for kind, every in modes.items() for mode in every]:
        (tmp_path / "dog" / f"{mode}.{kind.lower()[:4]}").write_bytes(encoded(kind, mode))
    camera = encoded("MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    (tmp_path / "dog" / "9.jpg").write_bytes(camera)  # with a second picture, as cameras write it
    listed = sum(1 for path in tmp_path.rglob("*") if path.is_file())
    assert load_images("image_folder", tmp_path).images.shape == (listed, 3, 8, 8)


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


@pytest.mark.parametrize("edit", ["content", "time", "in place"])
def test_an_edited_source_is_decoded_anew(tmp_path, edit):
    image_folder(tmp_path)
    file = tmp_path / "cat" / "0.png"
    before, status = load_images("image_folder", tmp_path), file.stat()
    changed = encoded(size=(8, 8), compress_level=0) if edit == "content" else PNG
    if edit == "in place":  # other pixels in as many bytes, and the time of modification set back
        original = encoded("BMP")
        file.write_bytes(original)
        before, status = load_images("image_folder", tmp_path), file.stat()
        changed = original[:-24] + bytes(24)
    file.write_bytes(changed)
    if edit == "in place":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        )
    after = load_images("image_folder", tmp_path)
    assert (after.sha256 == before.sha256) == (edit != "in place")


def test_files_that_change_while_they_are_read_are_refused(tmp_path, cache, monkeypatch):
    image_folder(tmp_path)
    kind = sources.get("image_folder")
    read = kind.read

    def meddled(self, *of):
        found = read(self, *of)
        (tmp_path / "cat" / "1.png").write_bytes(encoded("BMP"))
        return found

    monkeypatch.setattr(kind, "read", meddled)
    with pytest.raises(UserError, match="changed while they were read; start again"):
        load_images("image_folder", tmp_path)
    assert not [path for path in (cache / "images").iterdir() if path.is_dir()]


def test_names_of_classes():
    check_names(["a", "A", "a b"], "here")
    wrong = {"class 2": ["a", "b", "a"], "class 1": ["a", ""], "udc80": ["\udc80"]}
    for word, names in wrong.items():
        refused(lambda names=names: check_names(names, "here"), word)
