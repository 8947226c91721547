"""MaPLe's prompts: what each comparison of DP2FL shares."""

from __future__ import annotations

import torch

DEEP = {"algorithm.depth": 3}


def test_fedprox_without_its_term_is_fedavg(run):
    one = run("maple_fedavg")
    assert run("maple_fedprox", {"algorithm.mu": 0}).same_clients_as(one)
    pulled = run("maple_fedprox", {"algorithm.mu": 10})
    assert not torch.equal(
        pulled.servers[-1]["model"]["task.0"], one.servers[-1]["model"]["task.0"]
    )


def test_pfedme_keeps_personal_prompts_near_the_global_ones(run):
    done = run("maple_pfedme", {"algorithm.inner_steps": 2})
    assert done.assembly.algorithm.hp.weights == "uniform"
    assert "global_accuracy" not in done.results[-1].metrics
    assert not torch.equal(done.models[0]["task.0"], done.models[1]["task.0"])


def test_local_training_sends_nothing_and_fedavg_all_parameters(run):
    alone = run("maple_local")
    assert alone.results[1].up.total_params == alone.results[1].down.total_params == 0
    assert not torch.equal(alone.models[0]["task.0"], alone.models[1]["task.0"])
    averaged = run("maple_fedavg")
    parameters = 2 * 16 + (16 + 1) * 32
    assert averaged.results[1].up.params["prompts"] == 4 * parameters
