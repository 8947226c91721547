"""The text of a plug-in in a folder runs only after a yes; what the user names runs at once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml
from commands import analyse, cost, diff, predict, report, run, show, sweep, verify

import fedray
from fedray.cli.main import COMMANDS as SUBCOMMANDS
from fedray.errors import UserError
from fedray.plugins import loading, read_plugin, trust, trust_all, use

QUICK = ["rounds=1", "local_epochs=1", "data.clients=2", "data.samples=200", "model.feature_dim=8"]
SERIAL = ["--executor", "serial", "--no-track"]
TEXT = """
from pathlib import Path
Path({marker!r}).touch()
"""


@pytest.fixture(autouse=True)
def new_process(tmp_path, monkeypatch):
    """Forget what this process trusts, as a new one would."""
    monkeypatch.chdir(tmp_path)

    def forget() -> None:
        monkeypatch.setattr(sys.modules["fedray.plugins.trust"], "_trusted", set())
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
    plugin.write_text("raise ImportError")  # it is not this user's
    marker.unlink()
    return out


READING = {
    "show": lambda out: show([f"{out}/run.json"]),
    "cost": lambda out: cost([f"{out}/run.json"]),
    "report": lambda out: report([str(out)]),
    "diff": lambda out: diff([str(out), str(out)]),
}
RUNNING = {
    "show": lambda out: show([f"{out}/run.json", "rounds=3"]),
    "cost": lambda out: cost([f"{out}/run.json", "rounds=3"]),
    "predict": lambda out: predict([str(out), str(out)]),
    "run": lambda out: run([f"{out}/run.json", *SERIAL]),
    "resume": lambda out: run(["--resume", str(out), *SERIAL]),
    "retest": lambda out: analyse(["retest", str(out), "--with", ""]),
    "verify": lambda out: verify([str(out)]),
    "cka": lambda out: analyse(["cka", str(out)]),
}


@pytest.mark.parametrize("name", RUNNING)
def test_no_command_runs_a_strangers_text_unasked(theirs, marker, capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    (theirs / "image.png").touch()
    capsys.readouterr()
    assert RUNNING[name](theirs) == 2
    said = capsys.readouterr().err
    assert "the plug-in mine.py comes from a folder" in said
    assert "--trust" in said
    assert not marker.exists()


@pytest.mark.parametrize("name", READING)
def test_what_only_reads_a_run_loads_no_plugin(theirs, marker, capsys, name):
    assert READING[name](theirs) == 0
    assert "--trust" not in capsys.readouterr().err
    assert not marker.exists()


def test_the_api_does_not_either(theirs, marker):
    with pytest.raises(UserError, match="trust_all"):
        fedray.load(theirs).models()
    with pytest.raises(UserError, match="trust_all"):
        fedray.Experiment(theirs / "run.json")
    assert not marker.exists()
    trust_all()
    try:
        fedray.load(theirs).models()
    finally:
        trust_all(False)
    assert marker.exists()


def test_a_folder_that_names_a_file_is_asked_about_too(theirs, plugin, marker):
    config = theirs / "run.json"
    tree = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**tree, "plugins": [str(plugin)]}))
    (theirs / "run.json").unlink()
    plugin.write_text(TEXT.format(marker=str(marker)))
    for name in ("show", "cost", "run", "predict", "resume"):
        (theirs / "image.png").touch()
        assert RUNNING[name](theirs) == 2
    assert not marker.exists()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2), ("no\n", 2), ("", 2)])
def test_at_a_terminal_the_user_is_asked(theirs, marker, capsys, monkeypatch, answer, code):
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert cost([f"{theirs}/run.json", "rounds=3"]) == code
    assert "Run it? [y/N]" in capsys.readouterr().err
    assert marker.exists() == (code == 0)


def test_the_users_own_files_are_never_asked_about(tmp_path, plugin, new_process, capsys):
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
    assert show([f"{out}/run.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {"key": "plugins.mine", "value": read_plugin(str(plugin)).sha256, "source": ""} in shown


def test_a_run_of_an_experiment_that_names_a_file_is_never_asked_about(tmp_path, plugin):
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: fedavg_digits\nplugins: [{plugin}]\n")
    assert run([str(own), *QUICK, *SERIAL, "--out", str(tmp_path / "own")]) == 0
    assert show([str(own)]) == cost([str(own)]) == 0


def test_a_sweep_that_came_with_its_texts_is_asked_about(tmp_path, theirs, marker, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "answers: which?\nspace: {lr: {grid: [0.1]}}\n"
        f"scales: {{laptop: {{experiment: {theirs}/run.json}}}}\n"
    )
    assert sweep([str(path), "--no-track"]) == 2
    assert "the plug-in mine.py comes from a folder" in capsys.readouterr().err
    assert not marker.exists()


@pytest.mark.parametrize("words", [[], ["--plugin", "mine/mine.py"]])
def test_a_sweep_whose_experiment_names_a_file_is_never_asked_about(tmp_path, plugin, words):
    from fedray.studies.file import plan_study

    named = "" if words else f"plugins: [{plugin}]\n"
    (tmp_path / "own.yaml").write_text(f"extends: fedavg_digits\n{named}")
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "answers: which?\nspace: {lr: {grid: [0.1]}}\nscales: {laptop: {experiment: own.yaml}}\n"
    )
    plan = plan_study("sweep", str(path), plugins=words[1:])
    assert [plugin["module"] for plugin in plan.plugins] == ["mine"]


def test_every_command_that_runs_a_folders_text_has_the_flag():
    for word in ("cost", "data", "predict", "run", "show", "sweep", "table", "verify"):
        params = SUBCOMMANDS[word].command.params
        assert "--trust" in [flag for param in params for flag in param.opts], word


def test_what_a_program_trusts_runs_and_is_forgotten_at_its_end(plugin, marker, new_process):
    with pytest.raises(UserError, match="--trust"):
        use([read_plugin(str(plugin))])
    trust([read_plugin(str(plugin))])
    use([read_plugin(str(plugin))])
    assert marker.exists()
    new_process()
    with pytest.raises(UserError, match="--trust"):
        use([read_plugin(str(plugin))])
