"""What can be chosen by name is listed and documented out of the registries."""

from __future__ import annotations

import pytest

from fedray.__main__ import main
from fedray.base.shipped import FOLDERS, names
from fedray.cli.catalogue import KINDS, entries, experiment_keys
from fedray.cli.names import DEFAULT, GIVEN, LISTINGS, settings
from fedray.config import COMPONENTS, Experiment, flatten


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_is_listed_with_what_its_parameters_mean(kind, capsys):
    found = entries(kind)
    assert found
    for entry in found:
        assert entry.file, entry.name
        for parameter in entry.parameters:
            assert len(parameter.text) > 10, f"{entry.name}.{parameter.name} has no docstring"
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out
    assert all(f"\n{entry.name}" in f"\n{lines}" for entry in found)


def test_a_method_says_what_travels():
    travels = {entry.name: entry.travels for entry in entries("algorithms")}
    assert travels["local"] == "nothing"
    assert travels["fedavg"] == "up: model, samples; down: model"
    assert len(travels) >= 41


def test_ls_alone_counts_every_kind(capsys):
    assert main(["ls"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == list(LISTINGS)
    count = len(entries("groups")) + len(entries("architectures"))
    assert lines["models"].split()[0] == str(count)


@pytest.mark.parametrize("kind", FOLDERS)
def test_files_are_listed_with_their_first_lines(kind, capsys):
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names(kind)
    assert [line for line in lines if len(line.split()) < 4] == []


def test_show_says_what_is_known_of_a_name(capsys):
    assert main(["show", "fedproto"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("algorithm fedproto (FedProto)\n")
    assert all(len(line) <= 80 for line in said.splitlines() if "source: " not in line)
    assert "paper: Tan et al., AAAI 2022" in said
    assert "fedray/algorithms/prototypes/fedproto.py" in said
    assert "\n    lambda: float >= 0, <= 1e+06; default 1.0\n" in said


def test_every_key_of_an_experiment_is_listed_with_what_it_means(capsys):
    known = flatten(Experiment().tree())
    listed_keys = {each.name: each for each in experiment_keys()}
    plain = {key.removesuffix(".name") for key in known} | {"name", "plugins"}
    inner = {key for key in plain if key.rpartition(".")[0] in COMPONENTS}
    assert listed_keys.keys() == plain - inner
    assert [key for key, each in listed_keys.items() if len(each.summary) < 10] == []
    assert main(["show", "data.clients"]) == 0
    assert "value: int >= 1, <= 100000; default 20" in capsys.readouterr().out


def test_show_of_a_name_of_several_kinds_and_of_a_sweep(capsys):
    assert main(["show", "digits"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("model group digits\n")
    assert "\n\ndata source digits\n" in said
    assert "\nanswers: " in said  # the table's file
    assert main(["show", "fedtsp_lambda"]) == 0
    assert capsys.readouterr().out.count("\nanswers: ") == 2


def test_show_gives_resolved_values_and_where_they_are_set_without_the_data():
    name = "fedtsp_cifar100_crossdevice_paper"
    found = {each.key: each for each in settings(name, ["algorithm.prompt_length=3"])}
    assert found["algorithm.lambda"][1:] == (1.0, f"{name}.yaml")
    assert found["data.partition.alpha"].source == "fedtsp_cifar10_paper.yaml"
    assert found["algorithm.prompt_length"].source == GIVEN
    assert found["algorithm.prompt_lr"].source == DEFAULT
    assert found["algorithm.learn_tau"][1:] == (True, "preset official_code")
    assert found["data.root"].value == "cifar100"


def test_settings_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["show", "fedglcl_office_paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["key", "value", "source"]
    assert "".join(line[:27].strip() for line in lines).count("optimizer.momentum") == 1
