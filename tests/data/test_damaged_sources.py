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

PLACES = [
    (pipe, "is not a regular file"),
    (dangling, "cannot be read: No such file"),
    (loop, "cannot be read: Too many levels of symbolic links"),
    (folder, "is not a regular file"),
]
"""What may stand in the place of a file that is found by listing a folder."""

JSONS = [
    ("", "is not valid JSON"),
    ("{", "is not valid JSON"),
    (NOT_UTF8, "cannot be read: 'utf-8' codec"),
]
"""What is wrong with any JSON file."""


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


PARQUET = [
    *[(at("train-0.parquet", damage), "train-0.parquet " + match) for damage, match in PLACES[:2]],
    (at("train-0.parquet", content(b"")), "train-0.parquet cannot be read as parquet"),
    (at("train-0.parquet", flip(0.1)), "train-0.parquet cannot be read as parquet"),
    (lambda root: [path.unlink() for path in root.iterdir()], "no .*.parquet file below data.root"),
    (rows(images=[], labels=pa.array([], pa.int64())), "cat, dog: only test images, no image to"),
    (nothing_but_a_table_without_rows, "data.source=parquet: .* holds no images"),
    (rows(labels=[0, None, 1]), "train-0.parquet, row 1 has the label None"),
    (rows(labels=[0, 2]), "row 1 has the label 2, expected .* from 0 to 1"),
    (rows(labels=[0, -1]), "row 1 has the label -1"),
    (rows(labels=[True, False]), "row 0 has the label True"),
    (rows(images=[PNG, None, PNG]), "row 1: column 'image' contains no image bytes"),
    (rows(images=["a.png", "b.png", "c.png"]), "row 0: column 'image' contains no image bytes"),
    (rows(images=[{"path": "a.png"}] * 3), "row 0: column 'image' contains no image bytes"),
    (
        rows(images=[{"bytes": None, "path": "a"}] * 3),
        "row 0: column 'image' contains no image bytes",
    ),
    (rows(images=[PNG, b"", PNG]), "train-0.parquet, row 1 cannot be decoded"),
    (rows(domain=[1, 2, 3]), "row 0: the domain 1 is not a string"),
    (rows(domain=["a", None, "b"]), "row 1 has no domain, but others have one"),
    (repeated_column, "train-a.parquet has the columns image, label, label"),
    (
        lambda root: pq.write_table(pa.table({"x": [1]}), root / "train-a.parquet"),
        "has the columns x;",
    ),
    (meta("{"), "the metadata `huggingface` of train-0.parquet is not valid JSON"),
    (meta('{"info": [1]}'), "the class names of data.root=.* are unknown"),
    (meta('{"info": {"features": {"label": {"names": "ab"}}}}'), "names must be a list of strings"),
    (
        meta('{"info": {"features": {"label": {"names": ["a", "a"]}}}}'),
        "the classes 0 and 1 are both called 'a'",
    ),
    (
        lambda root: table(root / "train-b.parquet", metadata=described(["dog", "cat"])),
        "disagree on the class names",
    ),
    (at("dataset_info.json", content("{")), "dataset_info.json is not valid JSON"),
    (at("dataset_info.json", os.mkfifo), "dataset_info.json is not a regular file"),
    (at("dataset_info.json", content('{"class_names": [1, 2]}')), "must be a list of strings"),
    (at("dataset_info.json", content('{"class_names": ["a", " "]}')), "class 1 has an empty name"),
    (
        at("dataset_info.json", content(r'{"class_names": ["a", "\ud800"]}')),
        "dataset_info.json: .*hex esc",
    ),
    (link_to("nowhere", "train-b.parquet"), "train-b.parquet cannot be read: No such file"),
    (link_to("train-0.parquet", "more.parquet"), "more.parquet has no word for a split, unlike"),
]

IMAGES = [
    *[(at("cat/0.png", damage), "cat/0.png " + match) for damage, match in PLACES],
    (at("cat/0.png", content(b"")), "cat/0.png cannot be decoded"),
    (at("cat/0.png", torn), "cat/0.png cannot be"),
    (at("cat/0.png", flip(0.5)), "cat/0.png cannot be"),
    (at("cat/0.png", content(bomb(30_000))), "cat/0.png cannot be decoded: Image size"),
    (
        at("cat/0.png", content(encoded(size=(8, 6)))),
        "images differ in size: .* set data.image_siz",
    ),
    (at("cat/0.png", content(animated("GIF"))), "cat/0.png contains 2 images, expected one"),
    (at("cat/0.png", content(animated("PNG"))), "cat/0.png contains 2 images, expected one"),
    (at("cat/0.png", content(deep_png())), "cat/0.png has pixels of mode I;16, more than 8 bits"),
    (at("cat/0.png", content(encoded("TIFF", "F"))), "cat/0.png has pixels of mode F"),
    (
        lambda root: [(root / "cat" / f"{i}.png").unlink() for i in range(2)],
        "cat contains no image",
    ),
    (lambda root: (root / "eel").mkdir(), "eel contains no image"),
    (link_to("nowhere", "eel"), "eel cannot be read: No such file"),
    (link_to(".", "eel"), "eel contains no image"),
    (
        lambda root: (root / "cat").rename(os.fsdecode(os.fsencode(root) + b"/caf\xe9")),
        r"the name of class 0, 'caf\\udce9', is not UTF-8; rename it",
    ),
]

MASKS = [
    (at("classes.json", pipe), "classes.json cannot be read: it is not a regular file"),
    (at("classes.json", missing), "classes.json cannot be read: .*No such file"),
    (at("classes.json", content(NOT_UTF8)), "classes.json cannot be read: 'utf-8' codec"),
    (at("classes.json", content('["one"]')), "at least 2 items .*expected a list of two to 256"),
    (at("classes.json", content('{"a": 1}')), r"should be a valid array, found {'a': 1}; expected"),
    (at("classes.json", content('["a", 1]')), "classes.json: 1: input should be a valid string"),
    (at("x/train/images/0.png", pipe), "0.png is not a regular file"),
    (at("x/train/masks/0.png", pipe), "0.png has no mask"),
    (at("x/train/masks/0.png", content(PNG)), "has pixels of mode RGB, expected one class id"),
    (
        at("x/train/masks/0.png", content(encoded(mode="L", size=(9, 8)))),
        "has 9x8 pixels, but its im",
    ),
    (at("x/train/masks/0.png", content(encoded(mode="L"))), "contains class .*, but there are 2"),
    (at("x/train/masks/0.png", torn), "masks/0.png cannot be"),
    (lambda root: (root / "y").symlink_to("gone"), "y cannot be read: No such file"),
    (at("x/train/masks", shutil.rmtree), "train/masks is missing; a split has the folders images"),
    (at("x/train/images/0.png", missing), "train/images contains no image .*fill or remove"),
    (lambda root: (root / "x/train").rename(root / "x/learn"), "x/learn is not a split; expected "),
    (
        lambda root: (root / "x").rename(root / ".x"),
        "contains no images with masks; expected classes",
    ),
]

SPLIT = "split_zhou_OxfordPets.json"
COOP = [
    (at(SPLIT, content("<html>")), f"{SPLIT} is not valid JSON"),
    (at(SPLIT, content('{"train": {}, "val": [], "test": []}')), "train: input should be a valid"),
    (rewritten(lambda split: split.pop("val")), "val: field required"),
    (added("train", [[[[[]]]]]), r"train.2.0: .* found \[\[\[\["),
    (added("test", ["a", None, "cat"]), "test.2.1: input should be a valid integer, found None"),
    (added("train", ["a.png", "0", "cat"]), "train.2.1: input should be a valid int.*, found '0'"),
    (added("test", ["../a.png", 0, "cat"]), "test.2.0: the path leads out of the images' folder"),
    (added("test", ["a.png", -1, "cat"]), "test.2.1: input should be greater than or equal to 0"),
    (added("test", "a.png"), "test.2: input should be a valid array, found 'a.png'; expected the"),
    (added("test", ["cat0.png", 0, "cat"]), "json names an image twice"),
    (
        rewritten(lambda split: split["test"][0].__setitem__(2, "golf")),
        "names class 0 both 'cat' and 'golf'",
    ),
    *[
        (
            rewritten(lambda split, n=n: [part[1].__setitem__(1, n) for part in split.values()]),
            f"has 2 labels up to {n}; expected 0, 1, 2, ... without a gap",
        )
        for n in (2, 10**30)
    ],
    (rewritten(lambda split: [part.clear() for part in split.values()]), "has 0 labels up to -1"),
    (added("test", ["gone.png", 1, "dog"]), "gone.png and 0 more of the "),
    (rewritten(one_name_twice), "the classes 0 and 1 are both called 'guinea pig'"),
    (at("images/cat0.png", pipe), "cat0.png and 0 more of the "),
]

AIRCRAFT = [
    (at("variants.txt", content(b"caf\xe9\n")), "variants.txt cannot be read: 'utf-8' codec"),
    (at("variants.txt", content("707-320\n707-320\nCessna 172\n")), "without a gap"),
    (at("variants.txt", pipe), "variants.txt is missing"),
    (at("images_variant_val.txt", content("10 Concorde\n")), "names a variant that"),
    (at("images_variant_val.txt", missing), "images_variant_val.txt is missing"),
]

RAW = "FashionMNIST/raw"
TORCHVISION = [
    (at(f"{RAW}/t10k-labels-idx1-ubyte", pipe), "ubyte is not a regular file"),
    (at(f"{RAW}/t10k-labels-idx1-ubyte", folder), "are incomplete"),
    (idx("train-images-idx3-ubyte", struct.pack(">IIII", 2051, 9, 28, 28)), "are incomplete"),
    (
        idx("train-images-idx3-ubyte", struct.pack(">IIII", 2051, 0, 28, 28)),
        "are incomplete .offset",
    ),
    (idx("train-labels-idx1-ubyte", struct.pack(">II", 2049, 3) + bytes(3)), "4 images and labels"),
    (
        idx("train-labels-idx1-ubyte", struct.pack(">II", 2049, 4) + b"\x00\x01\x02\x0a"),
        r"labels span 0..10, but there are 10 classes",
    ),
]

CASES = [
    (source, make, damage, match)
    for source, make, damages in (
        ("parquet", parquet, PARQUET),
        ("image_folder", image_folder, IMAGES),
        ("domain_folder", domain_folder, [(lambda r: pipe(r / "amazon/cat/0.png"), PLACES[0][1])]),
        ("mask_folder", mask_folder, MASKS),
        ("coop", coop, COOP),
        ("coop", write_aircraft, AIRCRAFT),
        ("torchvision_fashion_mnist", write_fashion_mnist, TORCHVISION),
    )
    for damage, match in damages
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("source", "make", "damage", "match"), CASES)
def test_a_damaged_source_is_one_sentence(tmp_path, cache, source, make, damage, match):
    root = tmp_path / "oxford_pets"
    make(root)
    damage(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left to a warning
        with pytest.raises(UserError, match=match) as caught:
            load_images(source, root)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800
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


SPLITS = [
    *[(text, f"split.json {match}") for text, match in JSONS],
    ("null", ": input should be .*; expected the lists `train` and `test`, once or for ever"),
    ("[]", r"split.json: input should be an object, found \[\]; expected the lists"),
    ('{"train": ["cat/0.png"]}', "split.json: test: field required"),
    ('{"train": [], "test": {}}', "split.json: test: input should be a valid array, found {}"),
    ('{"train": [["cat/0.png"]], "test": []}', r"train.0: .* found \['cat/0.png'\]; expected the"),
    (
        '{"train": ["cat/0.png", "7.png"], "test": ["cat/1.png", "8.png"]}',
        r"do not match: 2 like '7.png', which the data does not have \(it has 'cat/0.png', ...\)",
    ),
    ('{"train": ["cat/0.png"], "test": ["cat/0.png"]}', "lists 'cat/0.png' twice"),
    ('{"train": ["cat/0.png"], "test": []}', "do not match: 3 like 'cat/1.png', which the file"),
]


@pytest.mark.parametrize(("text", "match"), SPLITS)
def test_a_damaged_split_file_is_one_sentence(tmp_path, text, match):
    image_folder(tmp_path)
    content(text)(tmp_path / "split.json")
    with pytest.raises(UserError, match=match):
        load_images("image_folder", tmp_path, ReadOptions(split="split.json"))


@pytest.mark.parametrize("place", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("gone")])
def test_a_split_file_that_is_none(tmp_path, place):
    image_folder(tmp_path)
    place(tmp_path / "split.json")
    with pytest.raises(UserError, match=r"data.split=split.json is not a file below data.root"):
        load_images("image_folder", tmp_path, ReadOptions(split="split.json"))


def test_a_list_of_too_many_bytes_is_not_read(tmp_path):
    image_folder(tmp_path)
    (tmp_path / "split.json").touch()
    os.truncate(tmp_path / "split.json", 2**33)  # a hole
    with pytest.raises(
        UserError, match=r"split.json cannot be read: it has 8,589,934,592 bytes, expected at most"
    ):
        load_images("image_folder", tmp_path, ReadOptions(split="split.json"))


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
    with pytest.raises(UserError, match=r"are incomplete \(Dataset not found or corrupted"):
        load_images("torchvision_cifar10", tmp_path)
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

    def meddled(self, root, *options):
        found = read(self, root, *options)
        (root / "cat" / "1.png").write_bytes(encoded("BMP"))
        return found

    monkeypatch.setattr(kind, "read", meddled)
    with pytest.raises(UserError, match="changed while they were read; start again"):
        load_images("image_folder", tmp_path)
    assert not [path for path in (cache / "images").iterdir() if path.is_dir()]


def test_names_of_classes():
    check_names(["a", "A", "a b"], "here")
    for names, match in (
        (
            ["a", "b", "a"],
            "here: the classes 0 and 2 are both called 'a'; give every class a different",
        ),
        (["a", ""], "here: class 1 has an empty name"),
        (["\udc80"], r"here: the name of class 0, '\\udc80', is not UTF-8"),
    ):
        with pytest.raises(UserError, match=match):
            check_names(names, "here")
