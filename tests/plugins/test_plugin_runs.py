"""Plug-ins of every kind through the command, serial; their identity, resuming, and faults."""

from __future__ import annotations

import pytest
import yaml
from plugged import METHOD, SMALL, run, write

import fedray.config.plugins as module
from fedray.config.plugins import use
from fedray.run import main
from fedray.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def none_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())


def refused(capsys, *words: str) -> str:
    assert main([*words, "--executor", "serial", "--no-track"]) == 2
    return capsys.readouterr().err


def test_a_method_is_what_it_says(tmp_path):
    plugin = write(tmp_path, mine=METHOD)
    base = run(tmp_path / "base", "fedavg_digits")
    one = run(tmp_path / "one", "fedavg_digits", *plugin, "algorithm=scaled")
    two = run(tmp_path / "two", "fedavg_digits", *plugin, "algorithm={name: scaled, scale: 2}")
    assert one.rounds[-1].metrics == base.rounds[-1].metrics
    assert two.rounds[-1].metrics != base.rounds[-1].metrics
    assert one.info.config["plugins"].keys() == {"mine"}
    assert "plugins" not in base.info.config


def test_an_experiment_names_its_plugins_relative_to_its_file(tmp_path, monkeypatch):
    folder = tmp_path / "there"
    folder.mkdir()
    write(folder, mine=METHOD)
    tree = {"extends": "fedavg_digits", "algorithm": "scaled", "plugins": "mine.py"}
    (folder / "it.yaml").write_text(yaml.safe_dump(tree))
    found = run(tmp_path / "run", "there/it.yaml")
    assert found.info.algorithm == "scaled"
    (folder / "mine.py").unlink()  # run.json has the text
    again = run(tmp_path / "again", str(tmp_path / "run" / "run.json"))
    assert again.info.identity == found.info.identity
    assert again.rounds[-1].metrics == found.rounds[-1].metrics


def test_a_copy_is_kept_and_a_changed_file_is_not_gone_on_with(tmp_path, capsys):
    plugin, out = write(tmp_path, mine=METHOD), tmp_path / "run"
    whole = run(tmp_path / "whole", "fedavg_digits", *plugin, "algorithm=scaled", "seed=3")
    run(out, "fedavg_digits", *plugin, "algorithm=scaled", "seed=3")
    assert (out / "plugins" / "mine.py").read_text() == METHOD
    (out / "states").rename(tmp_path / "gone")
    (out / "rounds.jsonl").unlink()

    changed = METHOD.replace("self.scale *", "3 *")
    write(tmp_path, mine=changed)
    use(())
    module._named.clear()  # as in a new process
    assert "comes from a folder" in refused(capsys, "--resume", str(out))
    said = refused(capsys, "--resume", str(out), *plugin)
    assert "holds another experiment (plugins.mine was '" in said
    assert main(["--resume", str(out), "--plugin", str(out / "plugins" / "mine.py"),
                 "--executor", "serial", "--no-track"]) == 0  # fmt: skip
    found = RunFolder(out).read()
    assert found.info.identity == whole.info.identity
    assert found.rounds[-1].metrics == whole.rounds[-1].metrics


def test_a_fault_shows_its_line_and_its_traceback_is_kept(tmp_path, capsys):
    text = METHOD.replace("return self", "assert local is None, 'no context'; return self")
    plugin, out = write(tmp_path, mine=text), tmp_path / "run"
    line = text.splitlines().index(next(each for each in text.splitlines() if "assert" in each)) + 1
    command = ["fedavg_digits", *plugin, "algorithm=scaled", *SMALL, "--out", str(out)]
    assert main([*command, "--executor", "serial", "--no-track"]) == 1
    said = capsys.readouterr().err
    assert f"step client_update: AssertionError: no context (mine.py, line {line})" in said
    kept = RunFolder(out).error.read_text()
    assert f'File "{tmp_path}/mine.py", line {line}, in loss' in kept
    assert "assert local is None, 'no context'" in kept
