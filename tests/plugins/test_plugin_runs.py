"""Plug-ins of every kind through the command, serial; their identity, resuming, and faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from plugged import DATA, ENCODER, METHOD, MODEL, SMALL, run, write

import fedray.plugins as module
from fedray.plugins import use
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


def test_a_model_of_any_layers_and_its_initial_weights(tmp_path):
    plugin = write(tmp_path, nets=MODEL)
    words = ["fedproto_digits", *plugin, "model.group=net", "model.feature_dim=16"]
    first, again = run(tmp_path / "a", *words), run(tmp_path / "b", *words)
    other = run(tmp_path / "c", *words, "seed=1")
    assert first.rounds[0].metrics == again.rounds[0].metrics
    assert first.rounds[0].metrics != other.rounds[0].metrics
    projected = run(tmp_path / "d", *words, "model.projector=8")
    assert projected.rounds[-1].up.total_bytes == first.rounds[-1].up.total_bytes


def test_source_partition_augmentation_and_metric(tmp_path):
    plugin = write(tmp_path, data=DATA)
    keys = ["data.source=tones", "data.augment=inverted", "data.partition=turns"]
    words = [word for word in SMALL if word != "data.partition=iid"]
    out = tmp_path / "run"
    command = ["fedavg_digits", *plugin, *words, *keys, "--executor", "serial", "--no-track"]
    assert main([*command, "--out", str(out)]) == 0
    found = RunFolder(out).read()
    assert found.rounds[-1].metrics["tested_clients"] == 3
    assert found.info.metric("tested_clients").name == "tested_clients"
    assert RunFolder(out).class_names() == ["dark", "bright"]
    base = run(tmp_path / "base", "fedavg_digits")  # without it: the metric is not measured
    assert "tested_clients" not in base.rounds[-1].metrics


def test_an_encoder(tmp_path):
    plugin = write(tmp_path, letters=ENCODER)
    words = ["fedtsp_digits", *plugin, "text.encoder=letters", "text.style=handcrafted"]
    found = run(tmp_path / "run", *words, "model.feature_dim=26", "algorithm.prompt_length=0")
    assert found.info.config["text"]["encoder"]["name"] == "letters"


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "return nn.Conv2d(channels, 8, 3)",
            r"gives \[2, 8, 6, 6\] for images \[2, 1, 8, 8\], exp",
        ),
        ("return nn.Linear(3, 4)", r"bad cannot take images of 1x8x8: RuntimeError"),
        ("return undefined", r"NameError: name 'undefined' is not defined \(nets.py, line 8\)"),
    ],
)
def test_a_model_that_gives_no_features(tmp_path, capsys, text, message):
    head = "from torch import nn\n\nfrom fedray.models import architecture\n\n\n"
    code = f'{head}@architecture("bad")\ndef bad(channels, image_size):\n    {text}\n'
    words = [*write(tmp_path, nets=code), "model.group=bad", *SMALL, "--executor", "serial"]
    assert main(["fedavg_digits", *words, "--no-track", "--out", str(tmp_path / "run")]) > 0
    assert re.search(message, capsys.readouterr().err)


EXITS = {
    "a method": (
        METHOD + "\n    def __init__(self, *given):\n        raise SystemExit(0)\n",
        ["algorithm=scaled"],
    ),
    "a source": (
        DATA.replace("        tones = [np", "        raise SystemExit\n        tones = [np"),
        ["data.source=tones"],
    ),
    "a partition": (
        DATA.replace("        n = len(", "        raise SystemExit(0)\n        n = len("),
        ["data.partition=turns"],
    ),
    "a model": (
        MODEL.replace("    made = Net(24)", "    raise SystemExit(0)"),
        ["model.group=net", "model.feature_dim=16"],
    ),
}


@pytest.mark.parametrize("what", EXITS)
def test_code_that_exits_is_a_fault(tmp_path, capsys, what):
    text, keys = EXITS[what]
    words = [*SMALL[:-1], "data.partition=iid"] if what != "a partition" else SMALL[:-1]
    command = ["fedavg_digits", *write(tmp_path, mine=text), *words, *keys, "--no-track"]
    out = tmp_path / "run"
    assert main([*command, "--executor", "serial", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert re.search(r"SystemExit.* \(mine\.py, line \d+\)", said)
    assert f"(traceback in {out}/error.txt)" in said
    assert "raise SystemExit" in RunFolder(out).error.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm=scaled"], "there is no algorithm 'scaled'."),
        (["algorithm=scalde", "--plugin", "mine.py"], "Did you mean 'scaled'?"),
        (["--plugin", "mien.py"], "mien.py does not exist"),
        (["plugins=mine.py", "algorithm.sclae=1", "algorithm=scaled"], "Did you mean 'scale'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(words, message, tmp_path, capsys):
    write(tmp_path, mine=METHOD)
    said = refused(capsys, "fedavg_digits", *words, "--out", "run")
    assert message in said
    assert said.count("\n") == 1
    assert not Path("run").exists()
