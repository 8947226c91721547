"""FedTSP with one global model: FedAvg and FedTSP at once, and what travels."""

from __future__ import annotations

import pytest
import torch

from fedray.algorithms.text_guided.fedtsp import semantic_prototype_loss
from fedray.algorithms.text_guided.fedtsp_global import FedTSPGlobal
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels

ONE_KIND = {"model.group": "cnn3"}
MILD = {"algorithm.lambda": 1, "algorithm.tau": 0.1}
C, D, N = 10, 16, 4


def test_the_loss_by_hand(assemble):
    algorithm = assemble("fedtsp_global", {**ONE_KIND, "algorithm.lambda": 2}).algorithm
    features, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
    output = ClassifierOutput(features, torch.zeros(1, 2))
    down = FedTSPGlobal.down(model={}, vectors=torch.eye(2), tau=0.5)
    local = LocalContext(None, None, ClientState({}), down)
    found = algorithm.loss(output, Batch(Pixels(features), labels), local)
    assert found.item() == pytest.approx(0.693147 + 2 * 0.513015, abs=1e-5)
    assert semantic_prototype_loss(features, labels, torch.eye(2), 0.5).item() == pytest.approx(
        0.513015, abs=1e-6
    )


@pytest.mark.parametrize("order", ["paper", "code"])
def test_prompts_first_learn_from_the_untrained_global_model(run, order):
    changes = {"model.group": "cnn2", **MILD, "rounds": 1, "algorithm.init_order": order}
    done = run("fedtsp_global", {**changes, "model.init": "independent"})
    first = done.results[0]
    whole = sum(tensor.numel() for tensor in done.servers[0]["model"].values())
    assert done.servers[0]["model"].keys() == done.assembly.models.initial("cnn2").keys()
    if order == "code":
        assert first.up.params == first.down.params == {}
        assert not done.servers[0]["present"].any()
    else:
        assert first.down.params == {"weights": N * whole}
        assert done.servers[0]["present"].any()
        assert not torch.equal(done.servers[0]["vectors"], done.servers[0]["first"])
    assert not torch.equal(done.servers[1]["vectors"], done.servers[0]["vectors"])


def test_without_prompts_the_text_stays(run):
    done = run("fedtsp_global", {**ONE_KIND, **MILD, "algorithm.prompt_length": 0})
    assert done.results[0].up.params == {}
    assert torch.equal(done.servers[-1]["vectors"], done.servers[0]["vectors"])
    assert done.servers[-1]["present"].any()
