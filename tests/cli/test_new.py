"""What `python -m fedray new` writes runs as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedray as package
from fedray.__main__ import main as fedray
from fedray.cli import new
from fedray.config.plugins import use
from fedray.run import main as run
from fedray.storage.run_folder import RunFolder

SMALL = ["rounds=1", "local_epochs=1", "data.samples=200", "data.clients=3", "data.partition=iid"]
ROOT = Path(package.__file__).parents[1]
SERIAL = ["--executor", "serial", "--no-track", "--out", "run"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())


@pytest.mark.parametrize("kind", ["method", "method --text", "method --prompts", "model", "source"])
def test_a_file_runs_by_the_command_that_is_printed(kind, capsys):
    kind, *uses = kind.split()
    assert fedray(["new", kind, "my_own", *uses]) == 0
    wrote, command = capsys.readouterr().out.splitlines()
    assert wrote == "wrote my_own.py"
    words = command.removeprefix("run it: fedray run ").split()
    samples = [] if kind == "source" else ["data.samples=200"]
    small = [word for word in SMALL if word != "data.samples=200"]
    assert run([*words, *small, *samples, *SERIAL]) == 0
    assert RunFolder(Path("run")).read().info.config["plugins"].keys() == {"my_own"}
    text = Path("my_own.py").read_text()
    assert "--plugin my_own.py" in text
    assert "new_" not in text.lower()


def test_a_projects_model_may_not_take_a_name_that_is_there(monkeypatch, capsys):
    names = SimpleNamespace(names=lambda: ["mine_net"])
    monkeypatch.setattr(new, "registry", lambda kind: names)
    assert fedray(["new", "project", "mine"]) == 2
    assert "there is architecture 'mine_net' already" in capsys.readouterr().err


def test_a_mixed_federation_with_a_model_of_ones_own(capsys):
    fedray(["new", "model", "mixed"])
    words = ["fedproto_digits", "--plugin", "mixed.py", "model.group=mixed_and_mlp"]
    assert run([*words, *SMALL, *SERIAL]) == 0
    models = package.load("run").models().assembly.models
    assert [*models.architectures] == ["mixed", "mlp", "mixed"]


@pytest.mark.long
def test_a_project_passes_its_own_test_and_lint_and_types(tmp_path, capsys):
    assert fedray(["new", "project", "mine"]) == 0
    there = {str(path.relative_to("mine")) for path in Path("mine").rglob("*") if path.is_file()}
    assert there == {
        "README.md", "mine.yaml", "mine_method.py", "mine_model.py", "test_mine.py",
        "tune/mine_tax.yaml",
    }  # fmt: skip
    tools = [
        ["pytest", "-q", "-p", "no:cacheprovider"],
        ["ruff", "check", "--isolated", "--select", "E,F,UP,B", "--line-length", "100", "."],
        ["ruff", "format", "--isolated", "--line-length", "100", "--check", "."],
    ]
    for tool in tools:
        done = subprocess.run(
            [sys.executable, "-m", *tool], cwd="mine", capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method", "my-own"], "'my-own' cannot be imported by Python"),
        (["method", "class"], "'class' cannot be imported"),
        (["method", "fedavg"], "there is algorithm 'fedavg' already; take another name"),
        (["model", "mlp"], "there is architecture 'mlp' already"),
        (["source", "json"], "a plug-in cannot be called 'json'"),
        (["method", "there"], "there.py is there already"),
        (["project", "folder"], "folder is there already"),
        (["model", "mine", "--text"], "--text is for methods: fedray new method mine --text"),
        (["project", "mine", "--prompts"], "--prompts is for methods"),
    ],
)
def test_names_that_cannot_be_taken(words, message, capsys):
    Path("there.py").touch()
    Path("folder").mkdir()
    assert fedray(["new", *words]) == 2
    assert message in capsys.readouterr().err
    assert Path("there.py").read_text() == ""
    assert not list(Path("folder").iterdir())


def test_listings_show_what_a_plugin_has(capsys):
    fedray(["new", "method", "listed"])
    capsys.readouterr()
    assert fedray(["ls", "algorithms", "--plugin", "listed.py"]) == 0
    assert "listed" in capsys.readouterr().out
    words = ["fedavg_digits", "algorithm=listed", "--plugin", "listed.py"]
    assert fedray(["show", *words]) == 0
    shown = capsys.readouterr().out
    assert "algorithm.tax" in shown
    assert "plugins.listed" in shown
    assert fedray(["ls", "algorithms"]) == 0
    assert "listed" not in capsys.readouterr().out
