"""A module that came in a received folder is never imported unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedray.__main__ import main
from fedray.config.plugins import hash_of
from fedray.config.registry import installed_points, search_path

MARK = "import pathlib; pathlib.Path({marker!r}).touch()\n"


@pytest.fixture
def received(tmp_path, monkeypatch) -> Path:
    """A folder whose modules leave a mark when they are imported."""
    folder = tmp_path / "received"
    folder.mkdir()
    text = MARK.format(marker=str(tmp_path / "executed"))
    for name in ("evil", "click", "yaml", "numpy", "sitecustomize"):
        (folder / f"{name}.py").write_text(text)
    info = folder / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedray.plugins]\nextra = evil\n")
    monkeypatch.chdir(folder)
    write_this(folder, "evil", {"evil.py": text})
    return folder


def write_this(folder: Path, module: str, files: dict[str, str]) -> None:
    """Write an experiment that says a module is installed, with its true hash."""
    plugin = {"module": module, "folder": "/x", "files": {}, "sha256": hash_of(module, files)}
    (folder / "this.yaml").write_text(yaml.safe_dump({"algorithm": "fedavg", "plugins": [plugin]}))


def called(*words: str, safe: bool = False) -> subprocess.CompletedProcess[str]:
    """Call fedray in the current folder by Python's -m."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *(["-P"] if safe else []), "-m", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("fedray", "show", "this.yaml"),
        ("fedray", "cost", "this.yaml"),
        ("fedray", "ls", "algorithms"),
        ("fedray.run", "this.yaml", "--executor", "serial", "--no-track"),
        ("fedray.table", "this.yaml", "--only-plan"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_nothing_of_the_current_folder_is_imported(received, tmp_path, words):
    done = called(*words)
    assert not (tmp_path / "executed").exists()
    assert done.returncode == (0 if "ls" in words else 2), done.stderr
    assert len(done.stderr.splitlines()) == (0 if "ls" in words else 1)


@pytest.mark.parametrize("module", ["evil", "antigravity", "rich", "pip"])
@pytest.mark.parametrize("command", ["show", "cost"])
def test_only_entry_points_count_as_installed(received, tmp_path, capsys, module, command):
    """Neither a module of the folder, of Python, nor of an installed package without one."""
    write_this(received, module, {})
    sys.modules.pop(module, None)
    assert main([command, "this.yaml"]) == 2
    assert f"the plug-in {module} is neither a file here nor installed" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()


def test_the_current_folder_is_not_searched_for_packages(received, monkeypatch):
    for entry in ("", ".", str(received), f"{received}/../received"):
        monkeypatch.syspath_prepend(entry)
        assert entry not in search_path()
        assert all(point.module != "evil" for point in installed_points())


@pytest.mark.slow
def test_a_checkout_that_is_not_installed_runs_in_its_folder(tmp_path, monkeypatch):
    """Workers need the folder of the package, which Python has put on its path."""
    import fedray

    checkout = Path(fedray.__file__).parents[1]
    monkeypatch.chdir(checkout)
    code = "import sys, os; sys.argv[0] = '-m'; sys.orig_argv = ['p', '-m', 'fedray']; " \
        "sys.path.insert(0, os.getcwd()); import fedray; print(sys.path[0])"  # fmt: skip
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(checkout)
