"""Every value of an experiment at paper scale says where it is from, and `show` prints it."""

from __future__ import annotations

import json

import pytest

from fedray.__main__ import main
from fedray.base.errors import UserError
from fedray.cli.show import DEFAULT, GIVEN, settings
from fedray.config import (
    EXECUTION,
    EXPERIMENTS,
    LABEL,
    RESOURCES,
    flatten,
    keys_of,
    merged,
    read_chain,
    read_experiment,
    sources_of,
)

PAPERS = sorted(path.stem for path in EXPERIMENTS.glob("*_paper.yaml"))


def explained(chain):
    """The keys that a file sets or inherits from one of another scale, which states no sources."""
    of_paper = [file.path.stem.endswith("_paper") for file in chain]
    keys = [flatten(file.tree).keys() for file in chain]
    setters = {
        key: max(i for i, own in enumerate(keys) if key in own) for key in flatten(merged(chain))
    }
    unsourced = keys_of(EXECUTION, RESOURCES, LABEL)
    return [k for k, i in setters.items() if k not in unsourced and not any(of_paper[i:-1])]


@pytest.fixture
def written(tmp_path):
    def write(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("name", PAPERS)
def test_every_key_of_paper_scale_has_a_source(name):
    sources = sources_of(read_chain(name))
    assert [key for key in explained(read_chain(name)) if not sources[key]] == []
    assert set(sources.values()) - {""}


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_source_names_a_key_that_is_not_set(path):
    sources_of(read_chain(path.stem))
    assert "sources" not in read_experiment(path.stem)


def test_a_source_is_inherited_until_the_key_is_set_anew(written):
    base = written(
        "lr: 0.1\nrounds: 3\nalgorithm: {name: fedprox, mu: 1}\n"
        "optimizer: {name: sgd, momentum: 0.9}\n"
        "sources:\n  lr: paper, Table 1\n  rounds: ours\n  algorithm.mu: paper\n"
        "  optimizer: official code\n",
        "base",
    )
    mine = written(
        f"extends: {base}\nlr: 0.2\nalgorithm: fedavg\noptimizer: {{weight_decay: 0.1}}\n"
        "sources:\n  rounds: 'paper, Sec. 2'\n"
    )
    assert sources_of(read_chain(mine)) == {
        "lr": "",
        "rounds": "paper, Sec. 2",
        "algorithm.name": "",
        "optimizer.name": "official code",
        "optimizer.momentum": "official code",
        "optimizer.weight_decay": "",
        "name": "",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 1\nsources: [lr]\n", "sources is"),
        ("lr: 1\nsources: {rounds: paper}\n", "sources names rounds, which is not set; remove it"),
        ("lr: 1\nsources: {lr: 3}\n", "sources.lr is 3, expected a text that begins with paper"),
        ("lr: 1\nsources: {lr: somewhere}\n", "expected a text that begins with paper, official"),
    ],
)
def test_a_wrong_source_is_one_sentence(written, capsys, text, said):
    name = written(text)
    with pytest.raises(UserError, match="sources"):
        sources_of(read_chain(name))
    assert main(["show", name]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_show_gives_resolved_values_and_their_sources_without_the_data(capsys):
    name = "fedtsp_cifar100_crossdevice_paper"
    assert main(["show", name, "algorithm.prompt_length=3", "--json"]) == 0
    found = {each["key"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["algorithm.lambda"]["value"] == 1.0
    assert found["algorithm.lambda"]["source"].startswith("paper, supplementary C.4")
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


@pytest.mark.parametrize("name", ["base_to_novel", "cifar100", "domains", "domainnet"])
def test_what_of_fedmgp_is_our_reading_is_said(name):
    sources = sources_of(read_chain(f"fedmgp_{name}_paper"))
    for key in ("sign", "measure", "reduction"):
        assert sources[f"algorithm.{key}"].startswith("ours: ")


def test_how_the_comparisons_baselines_are_set_is_said():
    fedtpg = sources_of(read_chain("fedtpg_paper"))
    for key in ("classes", "weights"):
        assert "FedMGP's comparison has" in fedtpg[f"algorithm.{key}"]
    assert "never" in sources_of(read_chain("fedgen_cifar10_paper"))["algorithm.untrained"]
    assert "4096" in sources_of(read_chain("fedfa_augmentation_office_paper"))["model.feature_dim"]


def test_where_split_files_are_from_is_documented():
    page = (EXPERIMENTS.parents[1] / "docs" / "own-data.md").read_text(encoding="utf-8")
    trees = [read_experiment(name) for name in PAPERS]
    files = {tree.get("data", {}).get("split") for tree in trees} - {None}
    assert files == {"lists"}
    assert "`data.split=lists` reads the lists that come with" in page
