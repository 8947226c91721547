"""Images of one's own, looked at before a run: what is there, and what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from commands import data as data_command
from image_files import structs, write_names, write_table
from PIL import Image

from fedray.__main__ import main
from fedray.base.errors import UserError
from fedray.data import ReadOptions, load_images
from fedray.data.inspect import inspect_folder, source_for
from fedray.language.descriptions import load_descriptions
from fedray.run import main as run
from fedray.storage.run_folder import RunFolder

COLOURS = {"daisy": (250, 250, 240), "rose": (200, 20, 60), "tulip": (240, 200, 20)}


def draw(path: Path, colour: tuple[int, int, int], size=(12, 10), mode="RGB") -> None:
    """A picture that no other one equals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(map(ord, "/".join(path.parts[-3:]))))
    values = noise.integers(0, 60, (size[1], size[0], 3)) + np.array(colour) // 2
    Image.fromarray(values.astype(np.uint8)).convert(mode).save(path)


@pytest.fixture
def flowers(tmp_path) -> Path:
    root = tmp_path / "flowers"
    for name, colour in COLOURS.items():
        for i in range(12):
            draw(root / name / f"{i:02}.png", colour)
    return root


def as_parquet(flowers: Path, folder: Path, **columns: list[object]) -> list[int]:
    """Write a folder of classes as a parquet file with further columns, and return its labels."""
    rows = sorted(flowers.glob("*/*.png"))
    labels = [sorted(COLOURS).index(path.parent.name) for path in rows]
    images = structs([path.read_bytes() for path in rows])
    write_table(folder / "train-0.parquet", {"image": images, "label": labels, **columns})
    write_names(folder, sorted(COLOURS))
    return labels


def test_a_folder_is_what_a_run_reads(flowers):
    draw(flowers / "rose" / "late.png", (9, 9, 9), mode="L")
    look = inspect_folder(flowers, source_for(flowers))
    images = load_images("image_folder", flowers)
    assert look.class_names == images.class_names
    assert [row.label for row in look.rows] == images.labels.tolist()
    assert [row.origin for row in look.rows] == images.origin.tolist()
    assert look.counts.tolist() == [[12, 0], [13, 0], [12, 0]]
    assert look.sizes == {(12, 10): 37}
    assert look.grey == 1
    assert look.image_size is None
    assert look.stops == []
    assert look.notes == ["1 grey images are converted to colour, like the others (data.channels)"]
    assert {len(found) for found in look.samples.values()} == {8}
    assert look.samples[0][0].shape == (48, 48, 3)


@pytest.mark.parametrize("source", ["image_folder", "parquet"])
@pytest.mark.parametrize("classes", [None, ("tulip", "daisy")])
def test_classes_and_a_split_are_those_of_a_run(tmp_path, flowers, source, classes):
    root = flowers if source == "image_folder" else tmp_path / "table"
    paths = [path.relative_to(flowers).as_posix() for path in sorted(flowers.glob("*/*.png"))]
    if source == "parquet":
        as_parquet(flowers, root)
        paths = [f"{i}.png" for i in range(len(paths))]
    (root / "split.json").write_text(json.dumps({"train": paths[:20], "test": paths[20:]}))
    options = ReadOptions(classes=classes, split="split.json")
    look, images = inspect_folder(root, source, options), load_images(source, root, options=options)
    assert look.class_names == images.class_names
    assert [row.label for row in look.rows] == images.labels.tolist()
    assert [row.origin for row in look.rows] == images.origin.tolist()
    assert look.stops == []


def test_the_command_counts_the_classes_and_the_split_of_a_run(flowers, capsys):
    paths = [path.relative_to(flowers).as_posix() for path in sorted(flowers.glob("*/*.png"))]
    (flowers / "split.json").write_text(json.dumps({"train": paths[::2], "test": paths[1::2]}))
    words = [str(flowers), "data.clients=2", "data.partition=iid", "data.classes=[tulip,daisy]"]
    assert data_command(words) == 0
    assert "24 images of 2 classes, no official test" in capsys.readouterr().out
    assert data_command([*words, "data.split=split.json", "data.test=official"]) == 0
    assert "24 images of 2 classes, 12 of them the official test" in capsys.readouterr().out


def test_the_command_reads_the_source_that_is_given(tmp_path, capsys):
    for domain in ("photo", "sketch"):
        for name, colour in COLOURS.items():
            draw(tmp_path / domain / name / "a.png", colour)
    assert data_command([str(tmp_path), "data.source=image_folder"]) == 2
    assert "photo contains no image" in capsys.readouterr().err


@pytest.mark.parametrize("held", ["test", "validation", "Val"])
def test_splits_are_no_domains(tmp_path, held):
    for split in ("train", held):
        for name, colour in COLOURS.items():
            draw(tmp_path / split / name / "0.png", colour)
    assert source_for(tmp_path) == "image_folder"
    assert inspect_folder(tmp_path, "image_folder").counts.tolist() == [[1, 1]] * 3


def test_domains_and_parquet_are_found_by_their_layout(tmp_path, flowers):
    for domain in ("photo", "sketch"):
        for name, colour in COLOURS.items():
            draw(tmp_path / "domains" / domain / "train" / name / "a.png", colour)
    look = inspect_folder(tmp_path / "domains", source_for(tmp_path / "domains"))
    assert look.source == "domain_folder"
    assert [row.domain for row in look.rows] == ["photo"] * 3 + ["sketch"] * 3
    assert look.image_set().domains.names == ("photo", "sketch")

    labels = as_parquet(flowers, tmp_path / "table")
    found = inspect_folder(tmp_path / "table", source_for(tmp_path / "table"))
    assert found.source == "parquet"
    assert [row.label for row in found.rows] == labels


def test_what_is_wrong_is_said(flowers):
    (flowers / "daisy" / "torn.jpg").write_bytes((flowers / "daisy" / "00.png").read_bytes()[:60])
    (flowers / "daisy" / "notes.txt").touch()
    draw(flowers / "rose" / "large.png", (1, 1, 1), size=(20, 16))
    draw(flowers / "17" / "only.png", (1, 1, 1))
    (flowers / "tulip" / "copy.png").write_bytes((flowers / "rose" / "00.png").read_bytes())
    (flowers / "tulip" / "again.png").write_bytes((flowers / "tulip" / "00.png").read_bytes())
    look = inspect_folder(flowers, source_for(flowers))
    assert look.image_size == 10
    (stop,) = look.stops
    assert stop.startswith("daisy/torn.jpg cannot be")
    assert look.notes == [
        "only one image of 17: it is used for training or testing, not for both",
        "17: class names without words, which a text encoder needs; rename the folders or set "
        "text.names",
        "not read: daisy/notes.txt; data.source=image_folder reads images (.bmp, .gif, .jpeg, "
        ".jpg, .pgm, .png, .ppm, .tif, .tiff, .webp) directly in the folder of their class",
        "the same image in two classes (1): rose/00.png = tulip/copy.png",
        "the same image twice in a class (1): tulip/00.png = tulip/again.png",
    ]


def test_a_class_that_is_only_in_the_test(tmp_path):
    for name, colour in COLOURS.items():
        draw(tmp_path / "test" / name / "a.png", colour)
        if name != "rose":
            draw(tmp_path / "train" / name / "b.png", colour)
    (tmp_path / "test" / "tulip" / "b.png").write_bytes(
        (tmp_path / "train" / "tulip" / "b.png").read_bytes()
    )
    look = inspect_folder(tmp_path, source_for(tmp_path))
    assert look.stops == ["rose: only test images, no image to train on"]
    assert "in training and in the official test (1)" in look.notes[-1]


@pytest.mark.parametrize("path", ["", "loose.png", "missing"])
def test_what_is_no_folder_of_classes_is_refused(tmp_path, path, capsys):
    if path == "loose.png":
        draw(tmp_path / path, (1, 2, 3))
    folder = tmp_path / path if path == "missing" else tmp_path
    assert main(["data", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert {
        "": "contains no folder of images; expected <class>/<image>",
        "loose.png": "contains no folder of images; expected <class>/<image>",
        "missing": "is not a folder",
    }[path] in error


@pytest.mark.parametrize("missing", [None, ""])
def test_images_without_a_domain_among_others_are_refused_as_a_run_refuses_them(
    flowers, tmp_path, capsys, missing
):
    domains = [missing, *["photo"] * 20, *["sketch"] * 15]
    as_parquet(flowers, tmp_path / "table", domain=domains)
    with pytest.raises(UserError, match=r"row 0 has no domain, but others have one \(photo"):
        load_images("parquet", tmp_path / "table")
    assert main(["data", str(tmp_path / "table"), "data.clients=3"]) == 2
    assert "row 0 has no domain, but others have one (photo, ...)" in capsys.readouterr().out


def test_the_command_that_is_printed_runs(flowers, tmp_path, capsys):
    draw(flowers / "tulip" / "zz.png", (1, 1, 1), size=(10, 14))
    out, texts = tmp_path / "look", tmp_path / "flowers.json"
    words = ["data", str(flowers), "data.clients=3", "--out", str(out)]
    assert main([*words, "--descriptions", str(texts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("image_folder, 37 images of 3 classes, no official test")
    assert "3 clients with" in "".join(lines)
    assert all((out / name).stat().st_size > 1000 for name in ("samples.png", "partition.png"))

    import shlex

    command = shlex.split(lines[-1].removeprefix("run it: fedray run "))
    small = ["data.image_size=16", "rounds=1", "local_epochs=1", "--executor", "serial"]
    folder = tmp_path / "run"
    assert run([*command, *small, "--no-track", "--out", str(folder)]) == 0
    info = RunFolder(folder).read().info
    assert info.config["data"]["clients"] == 3

    with pytest.raises(
        UserError, match=r"Fine-grained Descriptions\.0: string should have at least 1"
    ):
        load_descriptions(str(texts), tuple(COLOURS))
    filled = json.loads(texts.read_text())
    for entry in filled.values():
        entry["Fine-grained Descriptions"] = ["petals", "a stem", "in a meadow"]
    texts.write_text(json.dumps(filled))
    assert load_descriptions(str(texts), tuple(COLOURS)).classes["rose"].label == "rose"
    assert main([*words, "--descriptions", str(texts)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["lr=0.1", "data.clients"])
def test_words_that_are_none_of_the_data_are_refused(flowers, word, capsys):
    assert main(["data", str(flowers), word]) == 2
    assert "is no key of the data" in capsys.readouterr().err


def test_a_partition_that_cannot_be_is_a_problem(flowers, capsys):
    assert main(["data", str(flowers), "data.clients=50"]) == 2
    said = capsys.readouterr().out
    assert "a run would be refused: data.partition: 50 clients" in said
    assert "run it" not in said


# --- whatever `find` can list ---------------------------------------------------------------------


def socket_at(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def not_utf8(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


REFUSED = [
    (
        lambda root: (root / "rose/x.png").symlink_to("nowhere"),
        "rose/x.png cannot be read: No such",
    ),
    (lambda root: socket_at(root / "rose/x.png"), "rose/x.png is not a regular file"),
    (lambda root: (root / "rose/x.png").touch(), "rose/x.png is not an image"),
    (lambda root: not_utf8(root / "rose", b"\xe9.png").touch(), r"rose/\udce9.png is not an image"),
    (lambda root: (root / "rose").rename(not_utf8(root, b"\xe9")), "is not UTF-8; rename it"),
    (lambda root: (root / "train.parquet").touch(), "train.parquet cannot be read as parquet"),
    (lambda root: shutil.rmtree(root / "rose"), "there is one class, daisy"),
]
"""What stands in a folder of flowers, and why a run would refuse it."""

NAMED = [
    (lambda root: (root / "rose/up").symlink_to(".."), "rose/up/ (0 files);"),
    (lambda root: socket_at(root / "socket"), "socket;"),
    (lambda root: not_utf8(root / "rose", b"\xe9\x1b[31m").touch(), r"rose/\udce9\x1b[31m;"),
    (lambda root: (root / "rose/x.parquet").mkdir(), "rose/x.parquet/ (0 files);"),
]
"""What stands in a folder of flowers, is not read, and is named in a note."""


@pytest.fixture
def two_flowers(flowers) -> Path:
    shutil.rmtree(flowers / "tulip")
    return flowers


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("damage", "said"), REFUSED)
def test_whatever_is_in_a_folder_the_command_ends_in_a_sentence(
    two_flowers, capfdbinary, damage, said
):
    damage(two_flowers)
    assert main(["data", str(two_flowers), "data.clients=2"]) == 2
    out, err = (text.decode("utf-8") for text in capfdbinary.readouterr())
    assert said in (out + err).splitlines()[-1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("add", "named"), NAMED)
def test_whatever_is_not_read_is_named(two_flowers, capfdbinary, add, named):
    add(two_flowers)
    assert main(["data", str(two_flowers), "data.clients=2"]) == 0
    out = capfdbinary.readouterr().out.decode("utf-8")
    assert f"note: not read: {named} data.source=image_folder reads images" in out


def test_what_systems_add_is_passed_over(two_flowers, capsys):
    (two_flowers / "__MACOSX/rose").mkdir(parents=True)
    for name in ("rose/._0.png", "rose/Thumbs.db", ".DS_Store", "__MACOSX/rose/._0.png"):
        (two_flowers / name).write_bytes(b"Mac OS X")
    assert main(["data", str(two_flowers), "data.clients=2"]) == 0
    assert "not read" not in capsys.readouterr().out
    assert len(load_images("image_folder", two_flowers)) == 24
