"""The typed experiment: what is refused, and how files and keys are laid on each other."""

from __future__ import annotations

import pytest
import yaml
from lab import refused

from fedray.config import (
    EXPERIMENTS,
    Experiment,
    dump_yaml,
    flatten,
    load_experiment,
    merge,
    override,
    parse_assignments,
    parse_yaml,
    read_experiment,
)
from fedray.language.descriptions import find_descriptions
from fedray.runtime.resolve import from_tree, resolve

BASE = {
    "algorithm": {"name": "fedtsp", "lambda": 1, "tau": 0.1},
    "rounds": 3,
    "data": {"clients": 4, "partition": {"name": "dirichlet", "alpha": 0.1}},
    "text": {"encoder": {"name": "bert", "pooling": "cls"}},
}


def asked(*assignments: str) -> Experiment:
    return from_tree(BASE, parse_assignments(assignments))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("round=5", "Did you mean 'rounds'"),
        ("data.client=5", "Did you mean 'clients'"),
        ("data.partition.alhpa=1", "Did you mean 'alpha'"),
        ("algorithm.lamda=1", "Did you mean 'lambda'"),
        ("text.encoder.polling=mean", "Did you mean 'pooling'"),
        ("wire.zzz=1", "up_bits"),
        ("algorithm=fedtps", "Did you mean 'fedtsp'"),
        ("data.partition=irid", "Did you mean 'iid'"),
        ("algorithm.preset=official", "Did you mean 'official_code'"),
        ("algorithm.proto_agg=mean", "algorithm.proto_agg"),
        ("data.split=own.json", "test=local"),
        ("privacy.mode=local", "privacy.clip_norm"),
        ("privacy.noise_multiplier=1", "mode=none"),
        ("server_gpus=1", "gpus=0"),
        ("rounds", "rounds"),
        ("=5", "=5"),
        ("data.=5", "data.=5"),
        ("a..b=1", "a..b=1"),
        ("data.root=", "data.root"),
        ("data=abc", "data"),
    ],
)
def test_what_is_refused_names_the_key(assignment, named):
    refused(lambda: asked(assignment, "data.clients=3"), named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rounds: 3\nlr: 1\nrounds: 4", "rounds"),
        ("data:\n  root: a\n  root: b", "root"),
        ("data: {root: a", "x.yaml"),
        ("- a\n- b", "x.yaml"),
        ("", "x.yaml"),
        ("a: 1\n---\nb: 2", "x.yaml"),
        ("extends: nobody", "nobody"),
        ("extends: x", "x.yaml"),
        ("extends: base\ndata: {clients: 3}", "data"),
        ("algorithm: {lambda: 1}", "algorithm"),
        ("a: &a {b: *a}", "x.yaml"),
        ("data: &a {root: *a}", "x.yaml"),
        ("&a [1, [*a]]", "x.yaml"),
    ],
)
def test_bad_files(tmp_path, text, named):
    (tmp_path / "base.yaml").write_text("data: abc")
    (tmp_path / "x.yaml").write_text(text)
    refused(lambda: load_experiment(read_experiment(str(tmp_path / "x.yaml"))), named)


def test_missing_files(tmp_path):
    refused(lambda: read_experiment("fedtsp_digit"), "fedtsp_digits")
    refused(lambda: read_experiment(str(tmp_path / "nowhere.yaml")), "nowhere.yaml")


def test_aliases_that_take_all_memory_are_refused():
    lists = ["a0: &a0 [0]"]
    lists += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 31)]
    for levels in (6, 10, 31):  # ten times the list before, and so on
        refused(lambda n=levels: parse_yaml("\n".join(lists[:n]), "x.yaml"), "x.yaml")


# --- YAML ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-2e3", -2000.0),
        ("2.5e-1", 0.25),
        ("e3", "e3"),
        ("2026-11-22", "2026-11-22"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("yes", "yes"),
        ("off", "off"),
        ("=", "="),
        ("true", True),
        ("0x10", 16),
        ("1_000", 1000),
        (".5", 0.5),
        ("1.", 1.0),
        ("~", None),
        ("&a [1, 2]", [1, 2]),
        ("[&a 1, *a]", [1, 1]),
        ("{<<: 1}", {"<<": 1}),
    ],
)
def test_what_words_mean(text, value):
    found = parse_yaml(text, "here")
    assert (found, type(found)) == (value, type(value))
    if isinstance(value, str):  # and they are written so that nothing else can be read
        tree = {"names": [text, text], "same": [[1], [1]]}
        assert parse_yaml(dump_yaml(tree), "here") == yaml.safe_load(dump_yaml(tree)) == tree


def test_what_is_written_is_what_is_read(tmp_path):
    experiment = asked("algorithm.lambda=1e-7", "text.template='λ {label}: {description}'")
    (tmp_path / "config.yaml").write_text(dump_yaml(experiment.tree()), encoding="utf-8")
    read = from_tree(read_experiment(str(tmp_path / "config.yaml")))
    assert (read, read.tree()) == (experiment, experiment.tree())
    assert read.identity("data") == experiment.identity("data")
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment


# --- laying one tree on another ------------------------------------------------------------------


def test_other_components_are_replaced_whole():
    found = asked("data.partition={name: classes, classes_per_client: 3}", "text.encoder=minilm")
    params = {"classes_per_client": 3, "equal_sizes": False}
    assert found.data.partition.tree() == {"name": "classes", **params}
    assert found.text.encoder.tree() == {"name": "minilm", "pooling": "mean"}
    assert found.data.clients == 4


def test_a_key_of_a_component_keeps_the_others():
    before = asked().tree()
    for same in ("algorithm=fedtsp", "algorithm={name: fedtsp}"):
        assert asked(same) == asked()
    found = asked("algorithm.lambda=7", "data.partition.min_samples=5").tree()
    assert found["algorithm"] == {**before["algorithm"], "lambda": 7}
    assert found["data"]["partition"] == {**before["data"]["partition"], "min_samples": 5}
    assert found["data"]["partition"]["alpha"] == 0.1
    tree = override({"algorithm": "fedproto"}, [("algorithm.lambda", 3)])
    assert tree == {"algorithm": {"name": "fedproto", "lambda": 3}}


def test_the_order_of_a_component_and_its_keys_does_not_matter():
    forth = asked("algorithm=fedproto", "algorithm.lambda=7")
    back = asked("algorithm.lambda=7", "algorithm=fedproto")
    assert forth == back
    assert forth.algorithm.tree() == {"name": "fedproto", "lambda": 7, "proto_agg": "weighted"}


@pytest.mark.parametrize(
    ("first", "second", "key", "value"),
    [
        ("rounds=5", "rounds=6", "rounds", 6),
        ("shuffle=true", "shuffle=false", "shuffle", False),
        ("algorithm={name: fedprox, mu: 1}", "algorithm.mu=2", "algorithm.mu", 2.0),
        ("algorithm=fedavg", "algorithm={name: fedprox}", "algorithm.name", "fedprox"),
        ("data={clients: 3}", "data={clients: 5}", "data.clients", 5),
        ("data={clients: 3}", "data.clients=5", "data.clients", 5),
    ],
)
def test_later_assignments_win(first, second, key, value):
    assert flatten(asked(first, second).tree())[key] == value


def test_merge_leaves_its_arguments_alone():
    base, over = {"a": {"b": 1}}, {"a": {"c": [2]}}
    merged = merge(base, over)
    assert merged == {"a": {"b": 1, "c": [2]}}
    merged["a"]["c"].append(3)
    assert (base, over) == ({"a": {"b": 1}}, {"a": {"c": [2]}})


def test_extends(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "rounds: 3\nlr: 0.5\nalgorithm: {name: fedproto, lambda: 2}\ndata: {clients: 7}"
    )
    (tmp_path / "middle.yaml").write_text("extends: base\nlr: 0.25\ndata: {samples: 90}")
    (tmp_path / "top.yaml").write_text(f"extends: {tmp_path}/middle.yaml\nalgorithm: local")
    found = resolve(str(tmp_path / "top.yaml"))
    assert (found.rounds, found.lr, found.name) == (3, 0.25, "top")
    assert (found.data.clients, found.data.samples) == (7, 90)
    assert found.algorithm.tree() == {"name": "local"}


def test_a_preset_lies_between_file_and_assignments():
    plain = asked("algorithm.preset=official_code")
    assert (plain.shuffle, plain.algorithm.tree()["proto_agg"]) == (False, "uniform")
    assert plain.algorithm.tree()["lambda"] == 1
    changed = asked(
        "algorithm.preset=official_code", "shuffle=true", "algorithm.proto_agg=weighted"
    )
    assert (changed.shuffle, changed.algorithm.tree()["proto_agg"]) == (True, "weighted")
    assert changed.drop_last is True
    assert from_tree(changed.tree()) == changed


@pytest.mark.parametrize(
    ("experiment", "spellings"),
    [
        ("fedtsp_digits", ["algorithm=fedtsp", "algorithm=FedTSP", "algorithm=fed-tsp"]),
        ("promptfl_clip", ["algorithm=zero_shot", "algorithm='Zero-shot CLIP'"]),
        ("fedtsp_digits", ["data.partition=fedtsp_dirichlet", "data.partition=FedTSP-Dirichlet"]),
        ("fedtsp_digits", ["optimizer={name: sgd}", "optimizer={name: SGD}"]),
    ],
)
def test_the_spelling_of_a_name_changes_no_value(experiment, spellings):
    trees = [resolve(experiment, [spelling]).tree() for spelling in spellings]
    assert all(tree == trees[0] for tree in trees)


# --- identity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignment",
    [
        "workers=7",
        "data.root=/tmp",
        "cpus=3",
        "gpus=1",
        "checkpoint_every=5",
        "name=other",
        "scale=paper",
        "data.download=true",
        "faults.max_failures=9",
    ],
)
def test_what_changes_no_number_is_no_part_of_the_identity(assignment):
    assert asked(assignment).identity() == asked().identity()


def test_identity_is_what_determines_the_numbers():
    other = [
        "algorithm.lambda=2",
        "seed=1",
        "rounds=4",
        "lr=0.02",
        "algorithm=local",
        "threads=2",
        "data.partition.alpha=0.2",
        "data.source=parquet",
        "data.imbalance=10",
        "data.augment=flip_crop",
        "model.group=small",
        "wire.up_bits=8",
        "faults.drop=0.1",
        "text.style=name",
        "eval_every=2",
    ]
    identities = {asked(assignment).identity() for assignment in other}
    assert len(identities) == len(other)
    assert asked().identity() not in identities
    assert "keep" not in load_experiment({}).reproducibility_key()
    assert load_experiment({}).reproducibility_key()["report"]


# --- what is shipped -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))
def test_shipped_experiments_resolve(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    if root := read_experiment(name).get("data", {}).get("root"):
        (tmp_path / root).mkdir(parents=True)
    experiment = resolve(name)
    assert experiment.name == name
    if not name.endswith("_desktop"):  # these extend an experiment of another scale
        assert experiment.scale == ("paper" if name.endswith("_paper") else "laptop")
    if experiment.text.descriptions:
        assert find_descriptions(experiment.text.descriptions).is_file()
