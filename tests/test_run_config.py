"""A config.yaml that is not the one of its run is refused by every command that reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rounds import serial

import fedray
from fedray.__main__ import main
from fedray.config import parse_yaml
from fedray.errors import UserError
from fedray.run_config import read_config
from fedray.runtime.resolve import resolve

QUICK = ["rounds=1", "local_epochs=1", "data.clients=3", "data.samples=300", "model.group=mlp"]
Run = Callable[..., Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run with its models."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    keys = [*QUICK, "algorithm={name: fedprox, mu: 0.25}", "keep.models=last"]
    experiment = resolve("fedavg_digits", keys)
    list(serial(experiment, out).rounds())
    return out


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))


def cut_lines(run: Path) -> None:
    lines = (run / "config.yaml").read_text().splitlines(keepends=True)
    (run / "config.yaml").write_text("".join(lines[:7]))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": cut_lines,
    "a value": lambda run: edit(run, "mu: 0.25", "mu: 0.5"),
    "a section": lambda run: edit(run, "partition:", "evolution:"),
    "another key": lambda run: edit(run, "rounds: 1", "rounds: 1\nclip_grad_norm: 1.0"),
    "no mapping": lambda run: (run / "config.yaml").write_text("- 1\n"),
    "no YAML": lambda run: (run / "config.yaml").write_text("a: [\n"),
    "no file": lambda run: (run / "config.yaml").unlink(),
}


READERS = [
    ["predict", "{run}", "{image}", "--client", "0"],
    ["diff", "{run}", "{whole}"],
    ["diff", "{whole}", "{run}"],
    ["verify", "{run}"],
    ["show", "{run}"],
    ["cost", "{run}/config.yaml"],
    ["analyse", "retest", "{run}", "--with", "batch_size=10"],
    ["run", "--resume", "{run}", "--executor", "serial", "--no-track"],
]


@pytest.mark.parametrize(
    ("words", "damage"),
    [*((words, "a value") for words in READERS), *((READERS[4], damage) for damage in DAMAGE)],
    ids=lambda each: each if isinstance(each, str) else " ".join(each[:2]),
)
def test_every_reader_refuses_it(run, finished, tmp_path, monkeypatch, capsys, words, damage):
    monkeypatch.chdir(tmp_path)
    DAMAGE[damage](run)
    names = {"run": run, "whole": finished, "image": Path(__file__)}
    assert main([word.format(**names) for word in words]) == 2
    assert "config.yaml" in capsys.readouterr().err.splitlines()[-1]


def test_the_python_api_refuses_it(run):
    DAMAGE["a value"](run)
    with pytest.raises(UserError, match=r"config\.yaml"):
        fedray.load(run)


def test_the_message_names_key_and_both_values(run):
    edit(run, "mu: 0.25", "mu: 0.5")
    with pytest.raises(UserError, match=r"algorithm\.mu is 0\.5 there and 0\.25 in result\.json"):
        read_config(run)


@pytest.mark.parametrize(
    ("old", "new"), [("workers: 2", "workers: 1"), ("checkpoint_every: 1", "checkpoint_every: 5")]
)
def test_where_a_run_executes_may_change(run, old, new):
    edit(run, old, new)
    assert read_config(run) == parse_yaml((run / "config.yaml").read_text(), "it")


def test_a_run_that_has_no_result_yet_is_read(run):
    (run / "result.json").unlink()
    edit(run, "mu: 0.25", "mu: 0.5")
    assert read_config(run)["algorithm"]["mu"] == 0.5


def test_show_of_a_folder_is_show_of_its_configuration(finished, capsys):
    assert main(["show", str(finished)]) == 0
    shown = capsys.readouterr().out
    assert main(["show", str(finished / "config.yaml")]) == 0
    assert capsys.readouterr().out == shown != ""


def test_diff_names_what_an_experiment_of_today_has_otherwise(finished, capsys):
    assert main(["diff", str(finished), "fedavg_digits"]) == 0
    heading, *changes = capsys.readouterr().out.splitlines()
    assert heading == "fedavg_digits:"
    assert "  algorithm.name: fedprox, now fedavg" in changes
    assert "  algorithm.mu: 0.25, now missing" in changes
    assert "data.partition" not in "".join(changes)
