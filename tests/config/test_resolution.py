"""A resolved experiment: complete, the same however it was written, with one identity."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedray.base.errors import UserError
from fedray.config import COMPONENTS, flatten, load_experiment, parse_assignments
from fedray.config.registry import parameters_of, registry
from fedray.runtime.resolve import from_tree

BASE: dict[str, Any] = {
    "algorithm": "fedproto",
    "data": {"partition": "dirichlet", "augment": "flip_crop"},
    "text": {"encoder": "bert", "style": "fine"},
    "model": {"clip": "openclip"},
}


def resolved(*assignments: str) -> Any:
    return from_tree(BASE, parse_assignments(assignments))


@pytest.mark.parametrize("key", COMPONENTS)
def test_every_parameter_at_its_default_is_written_out(key):
    experiment = resolved()
    tree = flatten(experiment.tree())
    entry = registry(COMPONENTS[key]).get(tree[f"{key}.name"])
    params = parameters_of(entry)
    names = [] if params is None else [f.alias or n for n, f in params.model_fields.items()]
    assert {name for name in tree if name.startswith(f"{key}.")} == {
        f"{key}.{name}" for name in ("name", *names)
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["algorithm.lambda=2"], ["algorithm.lambda=2.0"]),
        ([], ["algorithm.lambda=1"]),
        ([], ["algorithm.lambda=1.0", "algorithm.proto_agg=weighted"]),
        (["lr=1"], ["lr=1.0"]),
        ([], ["rounds=20", "optimizer.momentum=0"]),
        ([], ["algorithm={name: fedproto}"]),
        (["data.partition.alpha=1"], ["data.partition={name: dirichlet, alpha: 1.0}"]),
        (["text.encoder=bert"], ["text.encoder={name: bert, pooling: cls}"]),
    ],
)
def test_two_ways_of_writing_the_same_have_one_identity(one, other):
    assert resolved(*one) == resolved(*other)
    assert resolved(*one).identity() == resolved(*other).identity()


@pytest.mark.parametrize(
    ("tree", "assignment"),
    [
        ({"optimizer": {"momentum": 0.9}}, "optimizer=SGD"),
        ({"data": {"partition": {"alpha": 0.5}}}, "data.partition.name=fedtsp_dirichlet"),
        ({"data": {"partition": {"alpha": 0.5}}}, "data={partition: fedtsp_dirichlet}"),
    ],
)
def test_naming_the_entry_that_a_mapping_without_a_name_has_keeps_its_parameters(tree, assignment):
    base = {"algorithm": "fedproto", **tree}
    named = from_tree(base, parse_assignments([assignment]))
    assert named.identity() == from_tree(base, []).identity()


def test_other_data_is_another_identity():
    experiment = resolved()
    identities = {experiment.identity(data) for data in ("", "a", "b")}
    assert len(identities) == 3


@pytest.mark.parametrize("key", COMPONENTS)
def test_every_component_is_looked_up_and_its_parameters_are_checked(key):
    with pytest.raises(UserError, match=f"there is no {COMPONENTS[key]} 'nothing'"):
        resolved(f"{key}=nothing")
    with pytest.raises(UserError, match=f"unknown key 'nothing' in {re.escape(key)}"):
        resolved(f"{key}.nothing=1")


@pytest.mark.parametrize(
    ("assignments", "key"),
    [
        (["model.pretrained=it.pth"], "model.pretrained"),
        (["text.descriptions=it.json"], "text.descriptions"),
        (["text.encoder=bert", "text.encoder.path=it"], "text.encoder.path"),
        (["model.clip=openclip", "model.clip.path=it"], "model.clip.path"),
    ],
)
def test_relative_paths_become_absolute(assignments, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment(BASE, parse_assignments(assignments))
    value = flatten(experiment.tree())[key]
    assert value == str(tmp_path / value.rsplit("/", 1)[-1])
    assert load_experiment(experiment.tree()) == experiment


def test_names_of_weights_and_descriptions_are_no_paths():
    names = ["model.pretrained=ResNet18_Weights.IMAGENET1K_V1", "text.descriptions=digits"]
    experiment = load_experiment(BASE, parse_assignments(names))
    assert experiment.model.pretrained == "ResNet18_Weights.IMAGENET1K_V1"
    assert experiment.text.descriptions == "digits"
