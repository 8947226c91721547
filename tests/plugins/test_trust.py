"""Plug-in texts that came with somebody else's folder run only after a yes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml
from commands import analyse, cost, predict, run, show, sweep

import fedray
from fedray.cli.main import COMMANDS as SUBCOMMANDS
from fedray.errors import UserError
from fedray.plugins import read_plugin, trust, trust_all, use

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
def theirs(tmp_path, plugin) -> Path:
    """A run's folder from somebody else, whose config.yaml carries the text of a plug-in."""
    out = tmp_path / "theirs"
    assert run(["fedavg_digits", *QUICK, *SERIAL, "--out", str(out)]) == 0
    config = out / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    files = {"mine.py": plugin.read_text()}
    tree["plugins"] = [{"module": "mine", "folder": "/theirs", "files": files}]
    config.write_text(yaml.safe_dump(tree))
    return out


COMMANDS = {
    "show": lambda out: show([f"{out}/config.yaml"]),
    "cost": lambda out: cost([f"{out}/config.yaml"]),
    "predict": lambda out: predict([str(out), str(out)]),
    "run": lambda out: run([f"{out}/config.yaml", *SERIAL]),
    "resume": lambda out: run(["--resume", str(out), *SERIAL]),
    "retest": lambda out: analyse(["retest", str(out), "--with", ""]),
    "cka": lambda out: analyse(["cka", str(out)]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_a_strangers_text_unasked(theirs, marker, capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    (theirs / "image.png").touch()
    capsys.readouterr()
    assert COMMANDS[name](theirs) == 2
    said = capsys.readouterr().err
    assert "plug-in mine.py came with files" in said
    assert "--trust" in said
    assert not marker.exists()


def test_the_api_does_not_either(theirs, marker):
    with pytest.raises(UserError, match="trust_all"):
        fedray.load(theirs).models()
    with pytest.raises(UserError, match="trust_all"):
        fedray.Experiment(theirs / "config.yaml")
    assert not marker.exists()
    trust_all()
    try:
        fedray.load(theirs).models()
    finally:
        trust_all(False)
    assert marker.exists()


def test_a_folder_that_names_a_file_is_asked_about_too(theirs, plugin, marker):
    config = theirs / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**tree, "plugins": [str(plugin)]}))
    for name in ("show", "cost", "predict", "resume"):
        (theirs / "image.png").touch()
        assert COMMANDS[name](theirs) == 2
    assert not marker.exists()


def test_what_was_trusted_once_is_not_asked_about_again(theirs, marker, new_process):
    assert show([f"{theirs}/config.yaml", "--trust"]) == 0
    assert marker.exists()
    new_process()
    assert cost([f"{theirs}/config.yaml"]) == 0
    new_process()
    config = theirs / "config.yaml"
    config.write_text(config.read_text().replace("executed", "executed_again"))
    assert cost([f"{theirs}/config.yaml"]) == 2  # another text


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2), ("no\n", 2), ("", 2)])
def test_at_a_terminal_the_user_is_asked(theirs, marker, capsys, monkeypatch, answer, code):
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert cost([f"{theirs}/config.yaml"]) == code
    said = capsys.readouterr().err
    assert "Run it? [y/N]" in said
    text = Path(said.partition("its text: ")[2].partition(")")[0])
    assert "touch()" in text.read_text()
    assert marker.exists() == (code == 0)


def test_the_users_own_run_is_never_asked_about(tmp_path, plugin, new_process):
    out = tmp_path / "own"
    words = ["fedavg_digits", *QUICK, "--plugin", str(plugin), *SERIAL, "--out", str(out)]
    assert run(words) == 0
    for name in ("show", "cost", "resume"):
        new_process()
        assert COMMANDS[name](out) == 0
    new_process()
    fedray.load(out).models()


def test_a_run_says_at_its_start_what_it_imports_from_elsewhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "scores.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("import scores\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    words = ["fedavg_digits", *QUICK, "--plugin", "mine.py", *SERIAL, "--out", "own"]
    assert run(words) == 0
    said = capsys.readouterr().out
    note, first_round = said.index("note: the plug-ins import scores ("), said.index("round 0/1")
    assert note < first_round


def test_a_run_of_an_experiment_that_names_a_file_is_never_asked_about(tmp_path, plugin):
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: fedavg_digits\nplugins: [{plugin}]\n")
    assert run([str(own), *QUICK, *SERIAL, "--out", str(tmp_path / "own")]) == 0
    assert show([str(own)]) == 0  # it has run


def test_a_sweep_that_came_with_its_texts_is_asked_about(tmp_path, theirs, marker, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "answers: which?\nspace: {lr: {grid: [0.1]}}\n"
        f"scales: {{laptop: {{experiment: {theirs}/config.yaml}}}}\n"
    )
    assert sweep([str(path), "--no-track"]) == 2
    assert "plug-in mine.py came with files" in capsys.readouterr().err
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
    for word in ("cost", "predict", "run", "show", "sweep", "table"):
        params = SUBCOMMANDS[word].command.params
        assert "--trust" in [flag for param in params for flag in param.opts], word


def test_what_a_program_trusts_runs_and_is_recorded(plugin, marker, new_process):
    with pytest.raises(UserError, match="--trust"):
        use([read_plugin(str(plugin))])
    trust([read_plugin(str(plugin))])
    use([read_plugin(str(plugin))])
    assert marker.exists()
    new_process()
    use([read_plugin(str(plugin))])
