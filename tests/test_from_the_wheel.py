"""docs/from-nothing.md as it stands: an empty folder, the installed wheel, no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, ROOT, commands, files
from PIL import Image
from rounds import result_in

PAGE = DOCS / "from-nothing.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the wheel")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the wheel's content and its command, bin/fedray."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("fedray-*.whl")
    site = folder / "site"
    install = [*pip, "install", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    return site


def draw_flowers(folder: Path) -> None:
    """A hundred images of three classes that can be told apart, of several sizes."""
    for label, (name, count) in enumerate({"daisy": 34, "rose": 33, "tulip": 33}.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            noise = np.random.default_rng([label, i]).integers(0, 80, (20 + i % 3, 24, 3))
            noise[..., label] += 150
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{i:03}.png")


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_page_from_an_empty_folder(installed, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    env = {
        **os.environ,
        "PATH": f"{installed / 'bin'}{os.pathsep}{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(installed),
        "HOME": str(tmp_path),
        "FEDRAY_RESULTS": str(tmp_path / "results"),
        "FEDRAY_CACHE": str(tmp_path / "cache"),
    }
    env.pop("FEDRAY_DATA", None)
    said: dict[str, str] = {}
    here = empty
    for command in ["python -c 'import fedray; print(fedray.__file__)'", *commands(PAGE)]:
        if command.startswith("cd "):
            here = here / command.removeprefix("cd ")
            draw_flowers(here / "flowers")
            for name, text in files(PAGE).items():
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                (here / name).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=here, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        said[command] = done.stdout
    assert str(installed) in next(iter(said.values()))
    check_runs(here / "results")
    check_comparison(tmp_path / "results")
    assert "\\toprule" in (here / "paper" / "table.tex").read_text()
    assert "Ours" in (here / "paper" / "table.tex").read_text()
    assert (here / "paper" / "curves.pdf").read_bytes().startswith(b"%PDF")
    (answer,) = (out for command, out in said.items() if command.startswith("fedray predict"))
    assert any(name in answer for name in ("daisy", "rose", "tulip"))


def check_runs(results: Path) -> None:
    """Three methods on the same images, by two workers, with the project's model."""
    found = {name: result_in(results / name) for name in ("mine", "fedproto", "local")}
    for name, result in found.items():
        config = result["config"]
        assert config["algorithm"]["name"] == name
        assert config["model"]["group"] == "mine_net"
        assert config["workers"] == 2
        assert len(result["rounds"]) == config["rounds"] + 1
    assert len({result["partition_sha256"] for result in found.values()}) == 1
    assert len({result["data_sha256"] for result in found.values()}) == 1


def check_comparison(results: Path) -> None:
    """The table and the sweep are there, whole."""
    (table,) = results.glob("tables/mine_table/*/table.json")
    assert {path.name for path in table.parent.iterdir()} >= {"table.tex", "table.md", "table.html"}
    (listed,) = results.glob("mine_tax/*/runs.json")
    assert len(json.loads(listed.read_text())["runs"]) == 6
