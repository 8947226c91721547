"""The run knows the images and labels that it uses: by `python -m fedray.run`, from end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rounds import result_in

from fedray.api import training
from fedray.base.errors import UserError
from fedray.results.analyses.extra_step import reopen
from fedray.run import main
from fedray.runtime.assembly import Assembly, forget_shared
from fedray.runtime.resolve import resolve

KEYS = ["rounds=2", "local_epochs=1", "batch_size=8", "data.clients=2", "data.source=image_folder"]


def write_images(root: Path, size=(8, 8), swapped: int = 0) -> None:
    """40 images of two classes; the first `swapped` of each class are in the other's folder."""
    width, height = size
    rng = np.random.default_rng(0)
    for label in range(2):
        for i in range(20):
            pixels = rng.integers(0, 100, (height, width), dtype=np.uint8) + 100 * label
            file = root / ("cat", "dog")[label ^ (i < swapped)] / f"{label}-{i:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(file)


@pytest.fixture
def root(tmp_path) -> Path:
    write_images(tmp_path / "data")
    return tmp_path / "data"


def command(root: Path, out: Path, *words: str, executor: str = "serial") -> int:
    forget_shared()  # as in a process of its own
    return main(
        ["local_digits", *KEYS, f"data.root={root}", "--executor", executor, "--no-track",
         "--out", str(out), *words]
    )  # fmt: skip


def numbers(out: Path) -> tuple:
    result = result_in(out)
    metrics = [done["metrics"] for done in result["rounds"]]
    return result["data_sha256"], result["partition_sha256"], metrics


class Interrupted:
    """In place of the progress bar: stops the command after round 1."""

    def __init__(self, rounds: int) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def __call__(self, done) -> None:
        if done.round == 1:
            raise KeyboardInterrupt


def test_labels_that_changed_between_rounds_end_the_resume(root, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(training, "RoundProgress", Interrupted)
        assert command(root, out) == 130
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    write_images(root, swapped=0)  # the same pixels and labels, in newer files
    moved = [root / "cat" / f"0-{i:02}.png" for i in range(3)]
    for path in moved:
        path.rename(root / "dog" / path.name)
    resume = ["--resume", str(out), "--executor", "serial", "--no-track"]
    capsys.readouterr()
    assert main(resume) == 2
    error = capsys.readouterr().err
    assert "another experiment (data_sha256 was " in error
    assert error.count("\n") == 1
    with pytest.raises(UserError, match=r"another experiment \(data_sha256 was "):
        reopen(out)
    left = {path: path.read_bytes() for path in before}
    assert left == before
    for path in moved:
        (root / "dog" / path.name).rename(path)
    assert main(resume) == 0
    assert len(numbers(out)[2]) == 3


@pytest.mark.parametrize("changed", ["data", "public"])
def test_a_worker_takes_no_other_images_or_files_than_the_server(root, tmp_path, worker, changed):
    write_images(tmp_path / "public", size=(9, 9))
    public = f"data.public={{name: source, source: image_folder, root: {tmp_path / 'public'}}}"
    keys = [*KEYS, "algorithm=feddf", "data.image_size=8", f"data.root={root}", public]
    server = Assembly(resolve("local_digits", keys))
    asked = server.experiment.model_dump_json(by_alias=True)
    assert worker._runner(asked, server.identity).assembly.data.sha256 == server.data.sha256
    worker._of = None
    moved = tmp_path / changed / "cat" / "0-00.png"  # as on a node with another copy
    moved.rename(tmp_path / changed / "dog" / moved.name)
    with pytest.raises(UserError, match="reads other images, labels or files"):
        worker._runner(asked, server.identity)


def test_oblong_images_where_the_model_takes_any(tmp_path):
    write_images(tmp_path / "data", size=(20, 16))
    asked = resolve("local_digits", [*KEYS, f"data.root={tmp_path / 'data'}", "model.group=cnn3"])
    assert Assembly(asked).models.empty("cnn3") is not None
