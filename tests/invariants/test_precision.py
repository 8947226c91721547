"""bfloat16 is for the networks: cosines, softmax over temperatures and losses stay in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensors import same

from fedray.algorithms.text_guided.fedglcl import FedGLCLTrainedText
from fedray.base.trees import leaves
from fedray.config import Frozen, Temperature
from fedray.core import Algorithm, Requires, algorithms
from fedray.models.classifier import BackboneClassifier
from fedray.models.prompted import PromptedClip


class _Probe(Frozen):
    temperature: Temperature = 1.0


def temperatures(method: type[Algorithm]) -> list[str]:
    """The method's keys that are temperatures: bounded as `Temperature` is."""
    bounds = _Probe.model_fields["temperature"].metadata
    fields = method.model_fields.items()
    return [field.alias or name for name, field in fields if field.metadata == bounds]


METHODS = sorted(
    method.name
    for method in algorithms.entries()
    if temperatures(method) or method.requires.prompts  # a CLIP divides by 0.01
)
SMALL = {"lr": 0.01, "rounds": 2, "data.clients": 2, "data.samples": 80}

QUICK = {"alignfed": {"algorithm.target_steps": 5}}


def changes_of(method: str) -> dict[str, Any]:
    entry: type[Algorithm] = algorithms.get(method)
    changes = {f"algorithm.{key}": 0.01 for key in temperatures(entry)}
    needs: Requires = entry.requires
    if needs.validation:
        changes["data.validation_fraction"] = 0.2
    if not needs.prompts:
        changes["model.group"] = "cnn2"
    return {**SMALL, **changes, **QUICK.get(method, {})}


@pytest.fixture
def networks_in_float32(monkeypatch):
    """Whatever is under autocast, backbones and towers compute in float32: the rest shows."""

    def exact(owner: type, name: str) -> None:
        inner = vars(owner)[name]

        def computed(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return inner(*args, **kwargs)

        monkeypatch.setattr(owner, name, computed)

    exact(BackboneClassifier, "forward")
    exact(FedGLCLTrainedText, "text")  # the end of the text encoder
    waiting = [PromptedClip]
    for owner in waiting:
        waiting += owner.__subclasses__()
        parts = {"text_features", "texts_after", "image_features", "shifts"}
        for name in parts & vars(owner).keys():
            exact(owner, name)


def state_of(done) -> dict[str, torch.Tensor]:
    """Every tensor of the server's and the clients' last states by its path."""
    found = {"server": done.servers[-1], "models": done.models, "memories": done.memories}
    tree = {part: {str(k): v for k, v in tree.items()} for part, tree in found.items()}
    return {"/".join(path): tensor for path, tensor in leaves(tree)}


def test_the_list_has_the_papers_methods():
    assert {"alignfed", "fedglcl", "fedmgp", "fedpcl", "fedpgp", "fedtsp", "moon"} <= set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_everything_but_the_networks_is_float32(run, networks_in_float32, method):
    changes = changes_of(method)
    full = run(method, changes)
    low = run(method, {**changes, "precision": "bfloat16"})
    assert same(state_of(low), state_of(full))
    assert [r.metrics for r in low.results] == [r.metrics for r in full.results]


def test_the_networks_are_not(run):
    full, low = (
        run("fedtsp", {**changes_of("fedtsp"), "precision": precision})
        for precision in ("float32", "bfloat16")
    )
    assert not same(state_of(low), state_of(full))
