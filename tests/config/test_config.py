"""The typed experiment: what is refused and with which words, and how files and keys are laid."""

from __future__ import annotations

import ast

import pytest
import yaml

from fedray.base.errors import UserError
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

PACKAGE = EXPERIMENTS.parent
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
    ("assignment", "message"),
    [
        ("round=5", r"unknown key 'round' in the experiment\. Did you mean 'rounds'\?"),
        ("data.client=5", r"unknown key 'client' in data\. Did you mean 'clients'\?"),
        ("data.partition.alhpa=1", r"unknown key 'alhpa' in data\.partition\. .*'alpha'\?"),
        ("algorithm.lamda=1", r"unknown key 'lamda' in algorithm\. Did you mean 'lambda'\?"),
        ("text.encoder.polling=mean", r"unknown key 'polling' in text\.encoder\. .*'pooling'\?"),
        ("wire.zzz=1", r"unknown key 'zzz' in wire\. Valid: up_bits"),
        ("algorithm=fedtps", r"there is no algorithm 'fedtps'\. Did you mean 'fedtsp'\?"),
        ("data.partition=irid", r"there is no partition 'irid'\. Did you mean 'iid'\?"),
        (
            "algorithm.proto_agg=mean",
            r"algorithm\.proto_agg: input should be 'weighted' or 'uniform', found 'mean'",
        ),
        (
            "data.split=own.json",
            r"data: split=own\.json tests on official test images, but test=local",
        ),
        ("privacy.mode=local", r"privacy: mode=local needs privacy\.clip_norm"),
        (
            "privacy.noise_multiplier=1",
            r"privacy: clip_norm and noise_multiplier do nothing with mode=none",
        ),
        ("server_gpus=1", r"server_gpus=1 leaves nothing of gpus=0 for the workers"),
        ("algorithm.preset=official", r"preset 'official'\. Did you mean 'official_code'\?"),
    ],
)
def test_what_is_refused(assignment, message):
    with pytest.raises(UserError, match=message):
        asked(assignment)


def test_an_algorithm_has_a_name():
    with pytest.raises(UserError, match=r"algorithm: expected a name, .*; it has no name"):
        load_experiment({"algorithm": {"lambda": 1}})


@pytest.mark.parametrize("text", ["rounds", "=5", "data.=5", ".rounds=5", "a..b=1", "a b=1"])
def test_what_is_no_assignment(text):
    with pytest.raises(UserError, match=r"is not key=value, for example rounds=5"):
        parse_assignments([text])


def test_an_assignment_has_a_value():
    with pytest.raises(UserError, match=r"data\.root= has no value; write data\.root=null"):
        parse_assignments(["data.root="])
    assert parse_assignments(["data.root=null", "a=b=c"]) == [("a", "b=c"), ("data.root", None)]


def test_an_experiment_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        asked().rounds = 5


# --- YAML ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1E5", 1e5), ("-2e3", -2000.0), ("2.5e-1", 0.25), ("3", 3), ("e3", "e3")],
)
def test_numbers_as_everybody_writes_them(text, value):
    found = parse_yaml(text, "here")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: 3\nlr: 1\nrounds: 4", r"x\.yaml .*key 'rounds' occurs twice .* line 1"),
        ("data:\n  root: a\n  root: b", r"key 'root' occurs twice in the mapping at line 2"),
        ("data: {root: a", r"x\.yaml is not valid YAML"),
        ("- a\n- b", r"x\.yaml holds list, expected a mapping of keys"),
        ("", r"x\.yaml holds NoneType, expected a mapping of keys"),
        ("extends: nobody", r"there is no experiment 'nobody'"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_experiment(str(tmp_path / "x.yaml"))


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"there is no experiment 'fedtsp_digit'\. .*fedtsp_digits"):
        read_experiment("fedtsp_digit")
    with pytest.raises(UserError, match=r"nowhere\.yaml does not exist"):
        read_experiment(str(tmp_path / "nowhere.yaml"))


def test_what_is_written_is_what_is_read(tmp_path):
    experiment = asked("algorithm.lambda=1e-7", "text.template='λ {label}: {description}'")
    (tmp_path / "config.yaml").write_text(dump_yaml(experiment.tree()), encoding="utf-8")
    read = from_tree(read_experiment(str(tmp_path / "config.yaml")))
    assert (read, read.tree()) == (experiment, experiment.tree())
    assert read.identity("data") == experiment.identity("data")
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment


@pytest.mark.parametrize(
    ("text", "value"),
    [
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


@pytest.mark.parametrize(
    "text",
    ["1e5", "1E-3", "010", "1:30", "yes", "off", "null", "true", "2026-11-22", "=", "0x1", ""],
)
def test_a_text_that_looks_like_something_else_is_written_as_a_text(text):
    tree = {"names": [text, text], "same": [[1], [1]]}
    assert parse_yaml(dump_yaml(tree), "here") == tree
    assert yaml.safe_load(dump_yaml(tree)) == tree


# --- laying one tree on another ------------------------------------------------------------------


@pytest.mark.parametrize("same", ["algorithm=fedtsp", "algorithm={name: fedtsp}"])
def test_the_same_algorithm_keeps_its_hyper_parameters(same):
    assert asked(same) == asked()


def test_other_components_are_replaced_whole_too():
    found = asked("data.partition={name: classes, classes_per_client: 3}", "text.encoder=minilm")
    params = {"classes_per_client": 3, "equal_sizes": False}
    assert found.data.partition.tree() == {"name": "classes", **params}
    assert found.text.encoder.tree() == {"name": "minilm", "pooling": "mean"}
    assert found.data.clients == 4


def test_a_key_of_a_component_keeps_the_others():
    before = asked().tree()
    found = asked("algorithm.lambda=7", "data.partition.min_samples=5").tree()
    assert (before["algorithm"]["name"], before["algorithm"]["tau"]) == ("fedtsp", 0.1)
    assert found["algorithm"] == {**before["algorithm"], "lambda": 7}
    assert found["data"]["partition"] == {**before["data"]["partition"], "min_samples": 5}
    assert found["data"]["partition"]["alpha"] == 0.1


def test_a_component_given_by_name_takes_keys():
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


def test_a_section_is_no_value():
    with pytest.raises(
        UserError, match=r"^data is set to 'abc' and also to a mapping of clients; leave one of"
    ):
        asked("data=abc", "data.clients=3")


def test_a_file_that_undoes_what_it_extends(tmp_path):
    (tmp_path / "base.yaml").write_text("data: abc")
    (tmp_path / "top.yaml").write_text("extends: base\ndata: {clients: 3}")
    with pytest.raises(
        UserError, match=r"data is set to 'abc' and also to a mapping of clients; leave one"
    ):
        read_experiment(str(tmp_path / "top.yaml"))


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


def test_extends_itself(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b")
    (tmp_path / "b.yaml").write_text("extends: a")
    with pytest.raises(UserError, match=r"a\.yaml extends itself"):
        read_experiment(str(tmp_path / "a.yaml"))


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


# --- identity ------------------------------------------------------------------------------------


def test_identity_is_what_determines_the_numbers(tmp_path):
    same = [
        "workers=7",
        f"data.root={tmp_path}",
        "cpus=3",
        "gpus=1",
        "checkpoint_every=5",
        "name=other",
        "data.download=true",
        "faults.max_failures=9",
    ]
    for assignment in same:
        assert asked(assignment).identity() == asked().identity(), assignment
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


def test_a_part_of_which_nothing_determines_numbers_leaves_no_trace_in_the_identity():
    assert "keep" not in load_experiment({}).reproducibility_key()
    assert load_experiment({}).reproducibility_key()["report"]


# --- what is shipped -----------------------------------------------------------------------------

SHIPPED = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_experiments_resolve(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    root = read_experiment(name).get("data", {}).get("root")
    if root:
        (tmp_path / root).mkdir(parents=True)
    experiment = resolve(name)
    assert experiment.name == name
    if not name.endswith("_desktop"):  # these extend an experiment of another scale
        assert experiment.scale == ("paper" if name.endswith("_paper") else "laptop")
    if experiment.text.descriptions:
        assert (
            find_descriptions(experiment.text.descriptions).parent
            == PACKAGE / "language" / "descriptions"
        )


def is_typed(node: ast.AST) -> bool:
    """Whether a class holds typed keys: a section of the experiment, or parameters."""
    if not isinstance(node, ast.ClassDef):
        return False
    is_method = any("method(" in ast.unparse(decorator) for decorator in node.decorator_list)
    ends = ("Frozen", "Entry", "Config", "Training", "Averaging", "Learning")
    return is_method or any(ast.unparse(base).endswith(ends) for base in node.bases)


def bare_keys(node: ast.AST) -> list[str]:
    """The keys of a class without a docstring below them."""
    bare = []
    for key, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(key, ast.AnnAssign) or "ClassVar" in ast.unparse(key.annotation):
            continue
        if ast.unparse(key.target).startswith("_"):
            continue
        section = "Config" in ast.unparse(key.annotation)
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if not section and not described:
            bare.append(ast.unparse(key.target))
    return bare


PLANS = {"SweepPlan", "TablePlan", "RowPlan"}
"""What nobody writes: a file and the command line, put together."""


def test_every_key_has_its_docstring():
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    typed = [
        (f"{path.relative_to(PACKAGE)}, line {node.lineno}", node)
        for path, text in texts.items()
        for outer in ast.parse(text).body
        for node in (outer, *getattr(outer, "body", ()))
        if is_typed(node) and node.name not in PLANS
    ]
    assert sum(place.startswith("algorithms") for place, _ in typed) > 61
    found = {place: bare_keys(node) for place, node in typed}
    assert {place: keys for place, keys in found.items() if keys} == {}


# --- aliases of YAML ------------------------------------------------------------------------------


def doubled(levels: int, last: str = "0") -> str:
    """A list that is ten times the list before, and so on: `10 ** levels` values."""
    lists = [f"a0: &a0 [{last}]"]
    lists += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels + 1)]
    return "\n".join(lists)


@pytest.mark.parametrize("levels", [5, 9, 30])
def test_aliases_that_take_all_memory_are_refused(levels):
    with pytest.raises(UserError, match=r"x\.yaml is not valid YAML: .* more than 100,000 values"):
        parse_yaml(doubled(levels), "x.yaml")


@pytest.mark.parametrize(
    "text", ["a: &a {b: *a}", "&a [1, [*a]]", "data: &a {root: *a}", "a: &a {b: &b {c: *a}}"]
)
def test_a_value_that_contains_itself_is_refused(text):
    with pytest.raises(UserError, match="the value at line 1 contains itself"):
        parse_yaml(text, "x.yaml")


def test_two_documents_are_one_too_many():
    with pytest.raises(UserError, match="x is not valid YAML"):
        parse_yaml("a: 1\n---\nb: 2", "x")


# --- spelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "spellings"),
    [
        ("fedtsp_digits", ["algorithm=fedtsp", "algorithm=FedTSP", "algorithm=fed-tsp"]),
        ("promptfl_clip", ["algorithm=zero_shot", "algorithm='Zero-shot CLIP'"]),
        ("fedtsp_digits", ["data.partition=fedtsp_dirichlet", "data.partition=FedTSP-Dirichlet"]),
        ("fedtsp_digits", ["text.encoder=minilm", "text.encoder=MiniLM"]),
        ("fedtsp_digits", ["optimizer={name: sgd}", "optimizer={name: SGD}"]),
    ],
)
def test_the_spelling_of_a_name_changes_no_value(experiment, spellings):
    trees = [resolve(experiment, [spelling]).tree() for spelling in spellings]
    assert all(tree == trees[0] for tree in trees)
