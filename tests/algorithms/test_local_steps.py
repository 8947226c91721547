"""How many steps a method says that a client takes in a round is how many its optimisers take."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fedray.core import HyperParameters, algorithms
from fedray.core.training import batch_indices

EPOCHS = 2
CHANGES = {
    "pfedme": {"algorithm.inner_steps": 3},
    "fedpac": {"algorithm.head_epochs": 3},
    "fedconcat": {"algorithm.clusters": 2, "algorithm.cluster_rounds": 1, "rounds": 3},
    "fedpcl": {"rounds": 2},
    "alignfed": {"algorithm.target_steps": 2},
}
"""Of methods whose steps a parameter sets, which take long, or which need more rounds."""
FIRST = {"fedpcl": 2}
"""The first round in which clients train, where it is not the first of all."""
OTHERS = ("fedavg", "fedmgp")
"""Methods that step once for every batch; all of them are for a night."""


def says(name: str) -> bool:
    return algorithms.get(name).HParams.local_steps is not HyperParameters.local_steps


@pytest.mark.parametrize(
    "name",
    [
        name if says(name) or name in OTHERS else pytest.param(name, marks=pytest.mark.long)
        for name in algorithms.names()
    ],
)
def test_a_client_takes_as_many_steps_in_a_round_as_its_method_says(run, monkeypatch, name):
    method = algorithms.get(name)
    whole, taken, seen = method.client_update, [], []

    def counted(self, client, state, down):
        before = len(taken)
        done = whole(self, client, state, down)
        if client.round == FIRST.get(name, 1):
            how, random = client.setting.training, torch.Generator()
            batches = len(batch_indices(len(client.train), how, random, client.device))
            seen.append((len(taken) - before, self.hp.local_steps(EPOCHS) * batches))
        return done

    monkeypatch.setattr(method, "client_update", counted)
    changes = {"local_epochs": EPOCHS, "rounds": 1, **CHANGES.get(name, {})}
    if not method.requires.prompts:
        changes["model.group"] = "cnn2"
    if method.requires.validation:
        changes["data.validation_fraction"] = 0.2
    hook = register_optimizer_step_pre_hook(lambda *_: taken.append(1))
    try:
        run(name, changes)
    finally:
        hook.remove()
    assert seen or name == "zero_shot"  # whose clients are never asked to train
    assert [steps for steps, _ in seen] == [said for _, said in seen]
