"""The text of a plug-in in a folder runs only if the user names a file of the same content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import analyse, cost, diff, predict, report, run, show, sweep, verify
from PIL import Image

import fedray
import fedray.config.plugins as loading
from fedray.base.errors import UserError
from fedray.cli.main import Commands
from fedray.cli.names import ShownKey, settings
from fedray.config.plugins import named_plugins, read_plugin, use

QUICK = ["rounds=1", "local_epochs=1", "data.clients=2", "data.samples=200", "model.feature_dim=8"]
SERIAL = ["--executor", "serial", "--no-track"]
TEXT = """
from pathlib import Path
Path({marker!r}).touch()
"""


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


READING = {
    "show": lambda out: show([f"{out}/run.json"]),
    "report": lambda out: report([str(out)]),
    "diff": lambda out: diff([str(out), str(out)]),
}
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
def test_the_text_of_a_folder_runs_if_the_user_names_a_copy(theirs, marker, capsys, name):
    copy = theirs.parent / "my copy" / "mine.py"
    copy.parent.mkdir()
    image = np.zeros((8, 8), np.uint8)
    Image.fromarray(image).save(theirs / "image.png")
    for content in (None, "other = 1"):
        named = []
        if content is not None:
            copy.write_text(content)
            named = ["--plugin", str(copy)] if name not in ("show", "cost", "run") else []
        capsys.readouterr()
        assert RUNNING[name](theirs, *named) == 2
        said = capsys.readouterr().err
        assert ("comes from a folder" in said) or (named and "holds another experiment" in said)
        assert not marker.exists()
    copy.write_text((theirs / "plugins" / "mine.py").read_text())
    assert RUNNING[name](theirs, "--plugin", str(copy)) == 0
    assert marker.exists() or name == "cost"


@pytest.mark.parametrize("name", READING)
def test_what_only_reads_a_run_loads_no_plugin(theirs, marker, name):
    assert READING[name](theirs) == 0
    assert not marker.exists()


def test_the_api_does_not_either(theirs, marker):
    with pytest.raises(UserError, match="comes from a folder"):
        fedray.load(theirs).models()
    with pytest.raises(UserError, match="comes from a folder"):
        fedray.Experiment(theirs / "run.json")
    assert not marker.exists()
    fedray.load(theirs, plugins=[theirs / "plugins" / "mine.py"]).models()
    assert marker.exists()


def test_a_file_that_a_folder_names_does_not_run(theirs, plugin, marker):
    config = theirs / "run.json"
    tree = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**tree, "plugins": [str(plugin)]}))
    (theirs / "run.json").unlink()
    plugin.write_text(TEXT.format(marker=str(marker)))
    for name in ("show", "cost", "run", "predict", "resume"):
        (theirs / "image.png").touch()
        assert RUNNING[name](theirs) == 2
    assert not marker.exists()


def test_the_users_own_files_run(tmp_path, plugin, new_process, capsys):
    out, named = tmp_path / "own", ["--plugin", str(plugin)]
    assert run(["fedavg_digits", *QUICK, *named, *SERIAL, "--out", str(out)]) == 0
    capsys.readouterr()
    for words in (["--resume", str(out), *SERIAL], [f"{out}/run.json", *SERIAL]):
        new_process()
        assert run([*words, *named]) == 0
        new_process()
        assert run(words) == 2  # the folder's text
    new_process()
    assert show(["fedavg_digits", *named]) == cost(["fedavg_digits", *named]) == 0
    new_process()
    capsys.readouterr()
    assert ShownKey("plugins.mine", read_plugin(str(plugin)).sha256, "") in settings(
        f"{out}/run.json"
    )


def test_a_file_that_an_experiment_names_runs(tmp_path, plugin):
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: fedavg_digits\nplugins: [{plugin}]\n")
    assert run([str(own), *QUICK, *SERIAL, "--out", str(tmp_path / "own")]) == 0
    assert show([str(own)]) == cost([str(own)]) == 0


def test_a_text_that_came_with_a_sweep_does_not_run(tmp_path, theirs, marker, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "answers: which?\nspace: {lr: {grid: [0.1]}}\n"
        f"scales: {{laptop: {{experiment: {theirs}/run.json}}}}\n"
    )
    assert sweep([str(path), "--no-track"]) == 2
    assert "the plug-in mine.py comes from a folder" in capsys.readouterr().err
    assert not marker.exists()


def test_every_command_that_runs_a_folders_text_has_the_flag():
    for word in ("cost", "data", "predict", "run", "show", "sweep", "table", "verify"):
        params = Commands().find(word).params
        assert "--plugin" in [flag for param in params for flag in param.opts], word


def test_what_a_program_names_runs(plugin, marker, new_process):
    with pytest.raises(UserError, match="--plugin"):
        use([read_plugin(str(plugin))])
    use(named_plugins([str(plugin)]))
    assert marker.exists()
    new_process()
    with pytest.raises(UserError, match="--plugin"):
        use([read_plugin(str(plugin))])
