"""MaPLe's prompts: what each comparison of DP2FL shares."""

from __future__ import annotations

import torch


def test_pfedme_keeps_personal_prompts_near_the_global_ones(run):
    done = run("maple_pfedme", {"algorithm.inner_steps": 2})
    assert done.assembly.algorithm.hp.weights == "uniform"
    assert not torch.equal(done.models[0]["task.0"], done.models[1]["task.0"])
