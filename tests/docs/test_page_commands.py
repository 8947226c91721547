"""Every command of the documentation: what is quick is run, of the rest each experiment resolves.

docs/write-a-method.md has a test of its own, which runs what it shows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, ROOT, commands, files, ours, pages
from PIL import Image
from stand_ins import Tiny

from fedray.cli.dry_run import check_command, split_command
from fedray.cli.main import main
from fedray.config.plugins import use

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")

QUICK = ("fedray new ", "fedray ls ", "fedray show ", "fedray data ")
"""What is run as it stands."""
PAGES = [page for page in pages() if page.name != "write-a-method.md" and ours(page)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with images of the pages' flowers; every other data.root is an empty folder."""
    monkeypatch.chdir(tmp_path)
    colours = {"daisy": 240, "rose": 120, "tulip": 180}
    for number, (name, bright) in enumerate(colours.items()):
        folder = tmp_path / "flowers" / name
        folder.mkdir(parents=True)
        for i in range(34):
            noise = np.random.default_rng([number, i]).integers(0, bright, (40 + i % 3, 48, 3))
            Image.fromarray(noise.astype(np.uint8)).save(folder / f"{i:02}.png")

    def found(root: str) -> Path:
        folder = Path(root) if Path(root).is_dir() else tmp_path / "data" / Path(root).name
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()

    monkeypatch.setattr("fedray.config.resolution.resolve_root", found)
    yield tmp_path
    use(())


def prepare(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that a page shows; where it begins with a project, inside of it."""
    if any(command.startswith("cd ") for command in commands(page)):
        main(["new", "project", "mine"])
        (here / "flowers").rename(here / "mine" / "flowers")
        monkeypatch.chdir(here / "mine")
    for name, text in files(page).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_one(here, page, monkeypatch, capsys):
    prepare(page, here, monkeypatch)
    for command in ours(page):
        if command.startswith("fedray new project"):
            continue
        if command.startswith(QUICK):
            assert main(command.split()[1:]) == 0, command
        else:
            check_command(command)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_runs_at_a_tiny_size(here, tiny_clip, letter_bert, page, monkeypatch, capsys):
    monkeypatch.setenv("FEDRAY_RESULTS", str(here / "results"))
    tiny = Tiny(here, tiny_clip, letter_bert)
    prepare(page, here, monkeypatch)
    for command in ours(page):
        word, given = split_command(command)
        if command.startswith(QUICK) and "project" not in given:
            assert main(command.split()[1:]) == 0, command
        elif word in ("run", "sweep", "table") and check_command(command):
            assert tiny.run(command, most=2)
