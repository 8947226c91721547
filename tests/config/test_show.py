"""`fedray show` prints the resolved settings of an experiment, and where each is set."""

from __future__ import annotations

import json

from fedray.__main__ import main
from fedray.cli.show import DEFAULT, GIVEN, settings
from fedray.config import EXPERIMENTS, read_experiment


def test_show_gives_resolved_values_and_where_they_are_set_without_the_data(capsys):
    name = "fedtsp_cifar100_crossdevice_paper"
    assert main(["show", name, "algorithm.prompt_length=3", "--json"]) == 0
    found = {each["key"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["algorithm.lambda"]["value"] == 1.0
    assert found["algorithm.lambda"]["source"] == f"{name}.yaml"
    assert found["data.partition.alpha"]["source"] == "fedtsp_cifar10_paper.yaml"
    assert found["algorithm.prompt_length"]["source"] == GIVEN
    assert found["algorithm.prompt_lr"]["source"] == DEFAULT
    assert found["algorithm.learn_tau"] == {
        "key": "algorithm.learn_tau",
        "value": True,
        "source": "preset official_code",
    }
    assert found["data.root"]["value"] == "cifar100"


def test_show_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["show", "fedglcl_office_paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["key", "value", "source"]
    assert "".join(line[:27].strip() for line in lines).count("optimizer.momentum") == 1


def test_what_is_shown_is_what_runs():
    shown = {each.key: each.value for each in settings("local_digits", ["lr=0.3"])}
    keys = ("lr", "optimizer.momentum", "algorithm.name")
    assert [shown[key] for key in keys] == [0.3, 0.0, "local"]


def test_where_split_files_are_from_is_documented():
    page = (EXPERIMENTS.parents[1] / "docs" / "own-data.md").read_text(encoding="utf-8")
    trees = [read_experiment(path.stem) for path in EXPERIMENTS.glob("*_paper.yaml")]
    files = {tree.get("data", {}).get("split") for tree in trees} - {None}
    assert files == {"lists"}
    assert "`data.split=lists` reads the lists that come with" in page
