"""Optimisers and learning rates of local training, compared with torch's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from reference import ReferenceClient, supervised
from tensors import CPU, same
from torch import nn

from fedray.base.errors import UserError
from fedray.config import component
from fedray.runtime.groups import GroupRunner

SGD_OF_ALL_KINDS = {
    "optimizer": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "local_epochs": 2,
}


# --- the learning rate over rounds ---------------------------------------------------------------


def rates(rounds: int, lr: float = 0.1, **schedule) -> list[float]:
    found = component("learning rate schedule", **schedule).build()
    return [found(lr, round_, rounds) for round_ in range(1, rounds + 1)]


def torchs(rounds: int, make, lr: float = 0.1) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr)
    schedule, found = make(optimizer), []
    for _ in range(rounds):
        found += [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (
            {"name": "cosine", "final_lr": 0.01},
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, 0.01),
        ),
        (
            {"name": "steps", "milestones": [3, 11], "factor": 0.5},
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 11], 0.5),
        ),
        (
            {"name": "constant", "warmup_rounds": 5, "warmup_lr": 0.02},
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.2, total_iters=5),
        ),
        (
            {"name": "cosine", "warmup_rounds": 4, "warmup_lr": 0.001},
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [
                    torch.optim.lr_scheduler.LinearLR(o, 0.01, total_iters=4),
                    torch.optim.lr_scheduler.CosineAnnealingLR(o, 16),
                ],
                [4],
            ),
        ),
    ],
)
def test_schedules_are_torchs(schedule, make):
    assert rates(20, **schedule) == pytest.approx(torchs(20, make), rel=1e-9, abs=1e-12)


def test_milestones_are_rounds_whatever_the_warm_up():
    asked = {"name": "steps", "milestones": [3], "factor": 0.5, "warmup_rounds": 2}
    assert rates(5, **asked)[2:] == pytest.approx([0.1, 0.05, 0.05])


def test_a_constant_rate_is_the_very_number():
    assert rates(3, lr=0.07, name="constant") == [0.07] * 3


def test_a_client_trains_with_its_rounds_rate_and_the_method_keeps_the_experiments(assemble):
    halved = {"name": "steps", "milestones": [1, 2, 3], "factor": 0.5}
    changes = {"lr": 0.1, "rounds": 4, "lr_schedule": halved}
    assembly = assemble("local", changes)
    runtime = GroupRunner(assembly, CPU)
    seen = [runtime.client(0, round_).setting.training.lr for round_ in (0, 1, 2, 4, 2)]
    assert seen == pytest.approx([0.1, 0.1, 0.05, 0.0125, 0.05])
    assert assembly.algorithm.setting.training.lr == 0.1


def test_fine_tuning_has_the_experiments_rate(run):
    """The last round's is next to nothing; heads that fine-tune with it would not move."""
    changes = {"rounds": 2, "finetune_epochs": 1, "lr": 0.5}
    tiny = {"lr_schedule": {"name": "steps", "milestones": [1], "factor": 1e-6}}
    done = run("local", {**changes, **tiny})
    tuned = done.results[-1].metrics["finetuned_accuracy"]
    assert tuned != done.results[-1].metrics["local_accuracy"]


# --- the steps -----------------------------------------------------------------------------------

OPTIMIZERS = [
    (SGD_OF_ALL_KINDS["optimizer"], torch.optim.SGD),
    ({"name": "adam", "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0.1}, torch.optim.Adam),
    ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
]


def bare_loop(assembly, client: int, optimizer: type) -> dict[str, torch.Tensor]:
    """A client's rounds in plain PyTorch, with torch's own optimiser and clipping."""
    config, experiment = assembly.setting.training, assembly.experiment
    model = GroupRunner(assembly, CPU).client(client, 0).skeleton.model
    model.load_state_dict(assembly.models.initial(assembly.models.architectures[client], client))
    model.train()
    reference = ReferenceClient(assembly, client)
    options = config.optimizer.model_dump()
    order = {"size": config.batch_size, "shuffle": config.shuffle, "drop_last": config.drop_last}
    bound = torch.inf if config.clip_grad_norm is None else config.clip_grad_norm
    clip = partial(nn.utils.clip_grad_norm_, [*model.parameters()], bound)
    for round_ in range(1, experiment.rounds + 1):
        steps = optimizer(model.parameters(), config.lr, **options)
        steps.param_groups[0]["lr"] = assembly.schedule(config.lr, round_, experiment.rounds)
        loss = supervised(model)
        reference.train(round_, loss, steps, config.epochs, before_step=clip, **order)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


SCHEDULED = {
    "rounds": 3,
    "clip_grad_norm": 0.5,
    "lr": 0.01,
    "lr_schedule": {"name": "cosine", "warmup_rounds": 1, "warmup_lr": 0.001},
}


@pytest.mark.parametrize(
    ("changes", "optimizer"),
    [
        *(({**SCHEDULED, "optimizer": asked}, torchs_own) for asked, torchs_own in OPTIMIZERS),
        *(
            (changes, torch.optim.SGD)
            for changes in (
                {},
                {"optimizer": {"name": "sgd", "weight_decay": 0.1}},
                {**SGD_OF_ALL_KINDS, "optimizer.nesterov": False},
                {"shuffle": False, "drop_last": True, "batch_size": 7},
                {"model.group": "cnn3", "batch_size": 12},
            )
        ),
    ],
)
def test_local_is_the_bare_loop_with_torchs_optimizer_bit_for_bit(run, changes, optimizer):
    done = run("local", changes)
    for client in range(4):
        expected = bare_loop(done.assembly, client, optimizer)
        assert same(done.models[client], expected)


def test_clipping_that_never_bites_changes_nothing(run):
    wide, plain = run("local", {"clip_grad_norm": 1e6}), run("local")
    tight = run("local", {"clip_grad_norm": 0.01})
    assert wide.same_clients_as(plain)
    assert not tight.same_clients_as(plain)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("local", {"momentum": 0.9}, "Did you mean 'optimizer.momentum'?"),
        ("local", {"weight_decay": 0.1}, "Did you mean 'optimizer.weight_decay'?"),
        ("local", {"optimizer.nesterov": True}, "optimizer: nesterov=true needs momentum"),
        ("local", {"optimizer": {"name": "adam", "betas": [0.9, 1]}}, r"optimizer\.betas\.1"),
        ("local", {"lr_schedule": "steps"}, r"lr_schedule\.milestones is missing"),
        ("scaffold", {"optimizer": "adam"}, "scaffold treats an update as a sum of gradients"),
        ("fednova", {"optimizer": "adamw"}, "fednova treats an update as a sum of gradients"),
        ("scaffold", {"clip_grad_norm": 1}, "but clip_grad_norm=1 scales"),
    ],
)
def test_refused_in_one_sentence(assemble, method, changes, said):
    changes = {"model.group": "cnn2", **changes}
    with pytest.raises(UserError, match=said):
        assemble(method, changes)
