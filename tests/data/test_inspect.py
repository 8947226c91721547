"""Images of one's own, looked at before a run: what is there, and what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from lab import refused_command
from PIL import Image

from fedray.cli.main import main
from fedray.data.inspect import source_for
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


def inspected(capsys, root: Path, *words: str) -> str:
    assert main(["data", str(root), "data.clients=3", *words]) == 0
    return "".join(capsys.readouterr())


def test_the_images_of_a_folder_are_counted(flowers, capsys):
    draw(flowers / "rose" / "late.png", (9, 9, 9), mode="L")
    (flowers / "notes.txt").touch()
    said = inspected(capsys, flowers)
    assert f"data.source=image_folder: {flowers}: 37 images of 3 classes, no official" in said
    assert "1 file not read: notes.txt" in said
    rows = [line.split() for line in said.splitlines()[1:4]]
    assert rows == [["daisy", "12"], ["rose", "13"], ["tulip", "12"]]
    assert "sizes: 1, with sides of 10 to 12 pixels" in said


def test_classes_and_a_split_are_those_of_a_run(flowers, capsys):
    paths = [path.relative_to(flowers).as_posix() for path in sorted(flowers.glob("*/*.png"))]
    (flowers / "split.json").write_text(json.dumps({"train": paths[::2], "test": paths[1::2]}))
    words = ["data.partition=iid", "data.classes=[tulip,daisy]", "data.split=split.json"]
    said = inspected(capsys, flowers, *words, "data.test=official")
    assert "24 images of 2 classes, 12 of them the official test; 12 files not read" in said
    assert said.index("tulip") < said.index("daisy") < said.index("sizes")


@pytest.mark.parametrize(
    ("paths", "source"),
    [
        (("cat/0.png", "dog/0.png"), "image_folder"),
        (("train/cat/0.png", "Val/cat/0.png"), "image_folder"),
        (("photo/train/cat/0.png", "sketch/train/cat/0.png"), "domain_folder"),
        (("photo/cat/0.png",), "domain_folder"),
        (("deep/train.parquet", "cat/0.png"), "parquet"),
        (("0.png",), "image_folder"),
    ],
)
def test_the_layout_tells_the_source(tmp_path, paths, source):
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert source_for(tmp_path) == source


def test_the_command_that_is_printed_runs(flowers, tmp_path, capsys):
    draw(flowers / "tulip" / "zz.png", (1, 1, 1), size=(10, 14))
    out, texts = tmp_path / "look", tmp_path / "flowers.json"
    words = ["--out", str(out), "--descriptions", str(texts)]
    said = inspected(capsys, flowers, *words)
    assert "data.image_size=10" in said
    assert "3 clients with" in said
    assert all((out / name).stat().st_size > 1000 for name in ("samples.png", "partition.png"))

    command = shlex.split(said.splitlines()[-1].removeprefix("run it: fedray run "))
    small = ["data.image_size=16", "rounds=1", "local_epochs=1", "--executor", "serial"]
    folder = tmp_path / "run"
    assert run([*command, *small, "--no-track", "--out", str(folder)]) == 0
    assert RunFolder(folder).read().info.config["data"]["clients"] == 3

    filled = json.loads(texts.read_text())
    for entry in filled.values():
        entry["Fine-grained Descriptions"] = ["petals", "a stem", "in a meadow"]
    texts.write_text(json.dumps(filled))
    assert load_descriptions(str(texts), tuple(COLOURS))["rose"].label == "rose"
    refused_command(["data", str(flowers), "data.clients=3", *words], capsys, "flowers.json")


def socket_at(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def not_utf8(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (shutil.rmtree, "flowers"),
        (lambda root: [shutil.rmtree(root / name) for name in COLOURS], "flowers"),
        (lambda root: socket_at(root / "rose/x.png"), "rose/x.png"),
        (lambda root: not_utf8(root / "rose", b"\xe9.png").touch(), r"rose/\udce9.png"),
        (lambda root: (root / "train.parquet").touch(), "train.parquet"),
    ],
)
def test_whatever_is_in_a_folder_the_command_ends_in_a_sentence(flowers, capsys, damage, named):
    damage(flowers)
    refused_command(["data", str(flowers), "data.clients=2"], capsys, named)


@pytest.mark.timeout(60)
def test_whatever_is_not_read_is_counted(flowers, capfdbinary):
    (flowers / "rose/up").symlink_to("..")
    socket_at(flowers / "socket")
    not_utf8(flowers / "rose", b"\xe9\x1b[31m").touch()
    draw(flowers / "rose/more/0.png", (1, 1, 1))
    assert main(["data", str(flowers), "data.clients=2"]) == 0
    out = capfdbinary.readouterr().out.decode("utf-8")
    assert r"not read: socket, rose/\udce9\x1b[31m, rose/more/0.png" in out
