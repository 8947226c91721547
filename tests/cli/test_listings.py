"""What can be chosen by name is listed and documented out of the registries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedray.__main__ import main
from fedray.base.shipped import FOLDERS, files, names
from fedray.cli.catalogue import entries, experiment_keys
from fedray.cli.entry import KINDS
from fedray.cli.listing import KEYS, LISTINGS, list_entries, read_entries
from fedray.config import COMPONENTS, Experiment, flatten, read_experiment
from fedray.studies.file import read_study


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_says_what_it_is_and_what_its_parameters_mean(kind):
    found = entries(kind)
    assert found
    for entry in found:
        assert entry.file, entry.name
        for parameter in entry.parameters:
            assert len(parameter.text) > 10, f"{entry.name}.{parameter.name} has no docstring"


def test_a_method_says_what_travels():
    travels = {entry.name: entry.travels for entry in entries("algorithms")}
    assert travels["local"] == "nothing"
    assert travels["fedavg"] == "up: model, samples; down: model"
    assert len(travels) >= 41


@pytest.mark.parametrize("kind", KINDS)
def test_ls_prints_a_line_for_each_or_json(kind, capsys):
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out
    names = [entry.name for entry in entries(kind)]
    assert all(f"\n{name}" in f"\n{lines}" for name in names)
    assert main(["ls", kind, "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == names


def test_an_unknown_kind_is_refused(capsys):
    assert main(["ls", "algoritms"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Invalid value for '[KIND]': 'algoritms' is not one of")
    assert error.count("\n") == 1


# --- what is listed and shown without importing what defines it ----------------------------------


def test_ls_alone_counts_every_kind(capsys):
    assert main(["ls"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == list(LISTINGS)
    assert lines["models"].split()[0] == str(
        len(list_entries("groups")) + len(list_entries("architectures"))
    )


@pytest.mark.parametrize("kind", FOLDERS)
def test_files_are_listed_with_their_first_lines(kind, capsys):
    assert main(["ls", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names(kind)
    assert [line for line in lines if len(line.split()) < 4] == []
    assert main(["ls", kind, "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)[0]["file"]).is_file()


def test_the_written_listing_is_what_the_registries_say():
    assert read_entries() == {kind: entries(kind) for kind in KINDS} | {KEYS: experiment_keys()}


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
    assert main(["show", "data.partition"]) == 0
    assert "value: name; default fedtsp_dirichlet\n" in capsys.readouterr().out


def test_show_of_a_name_of_several_kinds(capsys):
    assert main(["show", "digits", "--json"]) == 0
    kinds = [each["kind"] for each in json.loads(capsys.readouterr().out)]
    assert kinds == ["model group", "data source", "tables"]


def test_show_of_a_sweep_is_its_file(capsys):
    assert main(["show", "fedtsp_lambda"]) == 0
    assert "\nanswers: " in capsys.readouterr().out


def test_show_of_nothing(capsys):
    assert main(["show", "fedprto"]) == 2
    assert capsys.readouterr().err == (
        "error: there is nothing called 'fedprto'. Did you mean 'fedproto'?\n"
    )


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"), [("fedtsp_digits", "run"), ("fedtsp_curves", "sweep"), ("digits", "table")]
)
def test_a_copy_never_replaces_a_file(name, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["cp", name, "mine.yaml"]) == 0
    assert capsys.readouterr().out == f"wrote mine.yaml\nrun it: fedray {word} mine.yaml\n"
    if word == "run":
        assert read_experiment("mine.yaml") == {**read_experiment(name), "name": "mine"}
        assert "extends:" not in Path("mine.yaml").read_text()
    else:
        assert Path("mine.yaml").read_text() == files(f"{word}s")[name].read_text()
    assert main(["cp", name, "mine.yaml"]) == 2
    assert "mine.yaml is there already" in capsys.readouterr().err
    assert main(["cp", name, "some/where"]) == 0
    assert Path(f"some/where/{name}.yaml").is_file()
    assert main(["cp", name, "mine.yaml/there.yaml"]) == 2
    assert "mine.yaml: File exists" in capsys.readouterr().err


def test_the_kind_says_which_of_two_files_of_a_name_is_copied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["cp", "fedtsp_lambda"]) == 2
    assert (
        "several files; write fedray cp sweep fedtsp_lambda or fedray cp table fedtsp_lambda"
        in capsys.readouterr().err
    )
    for word in ("sweep", "table"):
        assert main(["cp", word, "fedtsp_lambda", f"{word}.yaml"]) == 0
        assert f"run it: fedray {word} {word}.yaml" in capsys.readouterr().out
        assert Path(f"{word}.yaml").read_text() == read_study(word, "fedtsp_lambda").text


def test_a_copy_of_nothing(capsys):
    assert main(["cp", "fedtsp_digit"]) == 2
    assert "no experiment, sweep or table 'fedtsp_digit'. Did you mean" in capsys.readouterr().err
    assert main(["cp", "table", "scalability"]) == 2
    assert "there is no table 'scalability'" in capsys.readouterr().err
    assert main(["cp", "table", "digits", "here", "there"]) == 2
    assert "'there' is one argument too many" in capsys.readouterr().err
