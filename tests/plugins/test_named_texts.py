"""Code runs only if the user names it: neither a folder's text, nor a module beside a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import analyse, cost, diff, predict, report, run, show, sweep, verify
from lab import refused
from PIL import Image

import fedray
import fedray.config.plugins as loading
from fedray.cli.names import ShownKey, settings
from fedray.config.plugins import hash_of, named_plugins, read_plugin, use
from fedray.config.registry import installed_points, search_path

QUICK = ["rounds=1", "local_epochs=1", "data.clients=2", "data.samples=200", "model.feature_dim=8"]
SERIAL = ["--executor", "serial", "--no-track"]
TEXT = "from pathlib import Path\nPath({marker!r}).touch()\n"


@pytest.fixture(autouse=True)
def new_process(tmp_path, monkeypatch):
    """Forget what this process may run, as a new one would."""
    monkeypatch.chdir(tmp_path)

    def forget() -> None:
        monkeypatch.setattr(loading, "_named", set())
        use(())
        for plugin in list(loading._loaded.values()):
            loading._unload(plugin)

    forget()
    yield forget
    use(())


@pytest.fixture
def marker(tmp_path) -> Path:
    """A file that the plug-in writes when it is executed."""
    return tmp_path / "executed"


@pytest.fixture
def plugin(tmp_path, marker) -> Path:
    """A plug-in's file."""
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "mine.py"
    path.write_text(TEXT.format(marker=str(marker)))
    return path


@pytest.fixture
def theirs(tmp_path, plugin, marker, new_process) -> Path:
    """A run's folder from somebody else, whose run.json carries the text of a plug-in."""
    out = tmp_path / "theirs"
    words = ["fedavg_digits", *QUICK, "--plugin", str(plugin), *SERIAL, "--out", str(out)]
    assert run(words) == 0
    new_process()
    plugin.rename(tmp_path / "copy.py")  # it is not this user's
    marker.unlink()
    return out


RUNNING = {
    "show": lambda out, *more: show([f"{out}/run.json", "rounds=3", *more]),
    "cost": lambda out, *more: cost([f"{out}/run.json", "rounds=3", *more]),
    "predict": lambda out, *more: predict([str(out), str(out), *more]),
    "run": lambda out, *more: run([f"{out}/run.json", *SERIAL, *more]),
    "resume": lambda out, *more: run(["--resume", str(out), *SERIAL, *more]),
    "retest": lambda out, *more: analyse(["retest", str(out), "--with", "", *more]),
    "verify": lambda out, *more: verify([str(out), *more]),
    "cka": lambda out, *more: analyse(["cka", str(out), *more]),
}


@pytest.mark.parametrize("name", RUNNING)
def test_the_text_of_a_folder_runs_if_the_user_names_a_copy(theirs, marker, name):
    copy = theirs.parent / "my copy" / "mine.py"
    copy.parent.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(theirs / "image.png")
    assert RUNNING[name](theirs) == 2
    if name not in ("show", "cost", "run"):  # which make another experiment of it
        copy.write_text("other = 1")
        assert RUNNING[name](theirs, "--plugin", str(copy)) == 2
    assert not marker.exists()
    copy.write_text((theirs / "plugins" / "mine.py").read_text())
    assert RUNNING[name](theirs, "--plugin", str(copy)) == 0
    assert marker.exists() or name == "cost"


def test_what_only_reads_a_run_loads_no_plugin(theirs, marker):
    assert show([f"{theirs}/run.json"]) == 0
    assert report([str(theirs)]) == 0
    assert diff([str(theirs), str(theirs)]) == 0
    assert not marker.exists()


def test_the_api_does_not_either(theirs, marker):
    refused(lambda: fedray.load(theirs).models(), "mine.py")
    refused(lambda: fedray.Experiment(theirs / "run.json"), "mine.py")
    assert not marker.exists()
    fedray.load(theirs, plugins=[theirs / "plugins" / "mine.py"]).models()
    assert marker.exists()


def test_a_text_that_came_with_a_sweep_does_not_run(tmp_path, theirs, marker, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "answers: which?\nspace: {lr: {grid: [0.1]}}\n"
        f"scales: {{laptop: {{experiment: {theirs}/run.json}}}}\n"
    )
    assert sweep([str(path), "--no-track"]) == 2
    assert "mine.py" in capsys.readouterr().err
    assert not marker.exists()


def test_the_users_own_files_run(tmp_path, plugin, new_process):
    out, named = tmp_path / "own", ["--plugin", str(plugin)]
    assert run(["fedavg_digits", *QUICK, *named, *SERIAL, "--out", str(out)]) == 0
    for words in (["--resume", str(out), *SERIAL], [f"{out}/run.json", *SERIAL]):
        new_process()
        assert run([*words, *named]) == 0
        new_process()
        assert run(words) == 2  # the folder's text
    new_process()
    assert show(["fedavg_digits", *named]) == cost(["fedavg_digits", *named]) == 0
    new_process()
    sha256 = read_plugin(str(plugin)).sha256
    assert ShownKey("plugins.mine", sha256, "") in settings(f"{out}/run.json")


def test_a_file_that_an_experiment_names_runs(tmp_path, plugin):
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: fedavg_digits\nplugins: [{plugin}]\n")
    assert run([str(own), *QUICK, *SERIAL, "--out", str(tmp_path / "own")]) == 0
    assert show([str(own)]) == cost([str(own)]) == 0


def test_what_a_program_names_runs(plugin, marker, new_process):
    refused(lambda: use([read_plugin(str(plugin))]), "--plugin")
    use(named_plugins([str(plugin)]))
    assert marker.exists()
    new_process()
    refused(lambda: use([read_plugin(str(plugin))]), "--plugin")


# --- modules beside a file -----------------------------------------------------------------------


@pytest.fixture
def received(tmp_path, monkeypatch, marker) -> Path:
    """A folder whose modules leave a mark when they are imported."""
    folder = tmp_path / "received"
    info = folder / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    for name in ("evil", "click", "yaml", "numpy", "sitecustomize"):
        (folder / f"{name}.py").write_text(TEXT.format(marker=str(marker)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedray.plugins]\nextra = evil\n")
    monkeypatch.chdir(folder)
    return folder


def write_experiment(folder: Path, module: str) -> None:
    """Write an experiment that says a module is installed, with its true hash."""
    plugin = {"module": module, "folder": "/x", "files": {}, "sha256": hash_of(module, {})}
    (folder / "this.yaml").write_text(yaml.safe_dump({"algorithm": "fedavg", "plugins": [plugin]}))


@pytest.mark.slow
@pytest.mark.parametrize("words", ["fedray show", "fedray.run"])
def test_nothing_of_the_current_folder_is_imported(received, marker, words):
    write_experiment(received, "evil")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", *words.split(), "this.yaml"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert not marker.exists()
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["evil", "antigravity", "rich", "pip"])
def test_only_entry_points_count_as_installed(received, marker, capsys, monkeypatch, module):
    """Neither a module of the folder, of Python, nor of an installed package without one."""
    write_experiment(received, module)
    sys.modules.pop(module, None)
    for word in (show, cost):
        assert word(["this.yaml"]) == 2
        assert module in capsys.readouterr().err
    assert not marker.exists()
    for entry in ("", ".", str(received), f"{received}/../received"):
        monkeypatch.syspath_prepend(entry)
        assert entry not in search_path()
        assert all(point.module != "evil" for point in installed_points())
