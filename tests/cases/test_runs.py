"""Cases about runs: core, runtime, storage and the Python API. A row names what somebody met."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import optimizer

import fedray
from fedray.base.errors import UserError
from fedray.core import algorithms
from fedray.laws.conformance import backwards, serial, trace
from fedray.plugin import FedAvg, Group, architecture, groups
from fedray.runtime.assembly import Assembly
from fedray.runtime.isolation import read_flags

SMALL = {"data.clients": 3, "data.samples": 150, "workers": 1, "local_epochs": 1}


def experiment(**keys) -> fedray.Experiment:
    """Return a run of two rounds of three clients; `__` in a name stands for a dot."""
    settings = {**SMALL, "rounds": 2, **{key.replace("__", "."): keys[key] for key in keys}}
    return fedray.Experiment("fedavg_digits", settings)


def begin(run: fedray.Experiment, out, until: int = 0) -> None:
    """Play the rounds up to this one and stop."""
    with contextlib.closing(run.rounds(out, executor="serial")) as rounds:
        next(done for done in rounds if done.round == until)


def method_of_a_notebook_changes(out):
    """A cell that defines a method is changed between a run and its resume."""

    def define(factor: float) -> None:
        class Mine(FedAvg):
            """A loss times a factor."""

            name, title, paper = "minecell", "Mine", "-"

            def loss(self, output, batch, local):
                return factor * F.cross_entropy(output.logits, batch.labels)

        algorithms._entries.pop("minecell", None)
        algorithms.add(Mine)

    define(1.0)
    run = experiment(algorithm="minecell")
    begin(run, out)
    define(0.0)
    run.train(out, executor="serial")


def group_of_a_notebook(out, members):
    """A cell that makes a group runs again before the run goes on."""
    for names in ("mlp cnn2", members):
        groups._entries.pop("cellgroup", None)
        groups.add(Group("cellgroup", "Two", tuple(names.split())))
        if not out.exists():
            run = experiment(algorithm="local", model__group="cellgroup")
            begin(run, out)
    return len(run.train(out, executor="serial").rounds), 3


class _Frozen(nn.Module):
    """A convolution and a batch norm that stay, and layers that learn."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4))
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.stem.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(self.stem(images)).flatten(1)


def frozen_layers_are_trained(out, method, stacked):
    """A network freezes layers: they stay as they are, with their running statistics."""
    architecture("frozen_stem")(lambda channels, size: _Frozen(channels))
    keys = {"model.group": "frozen_stem", "stacked": stacked, "keep.models": "last"}
    run = experiment(algorithm=method, lr=0.1, participation=1.0, **keys)
    run.train(out, executor="serial")
    models = Assembly(run._resolved).models
    after = fedray.load(out).model(client=0, which="last").state_dict()
    before = models.initial(models.architectures[0], 0)
    kept = [name for name in before if ".stem." in name]
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    return (len(kept), bool(moved), [name for name in moved if name in kept]), (7, True, [])


class _WithCache(nn.Module):
    """A linear layer, with a mask and a cache that PyTorch does not save."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 16)
        self.register_buffer("mask", torch.full((16,), -torch.inf), persistent=False)
        self.register_buffer("cache", torch.zeros(16), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layer(images.flatten(1))
        self.cache += features.detach().mean(0)  # of all batches so far
        return features.maximum(self.mask) + self.cache


def buffers_that_are_not_saved_travel(out):
    """They are neither sent nor kept, and no client sees those of another one."""
    architecture("with_cache")(lambda channels, size: _WithCache(channels * size**2))
    run = experiment(model__group="with_cache", keep__models="last", lr=0.1)
    done = run.train(out, executor="serial")
    state = fedray.load(out).model(client=0, which="last").state_dict()
    numbers = sum(tensor.numel() for tensor in state.values())
    sent = sum(done.rounds[-1].up.params.values()) / 3 - 1  # the client's number of images
    assembly = Assembly(run._resolved)
    either = [str(trace(assembly, order)[-1].tensors) for order in (serial, backwards)]
    buffers = [name for name in state if "mask" in name or "cache" in name]
    return (sent, either[0], buffers), (numbers, either[1], [])


def run_changes_the_process(out):
    """Before, between and after the rounds, torch has the settings of the user's process."""

    def settings():
        hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
        return *read_flags(), *map(len, hooks), torch.get_rng_state().tolist()

    threads = torch.get_num_threads()
    seen = []
    try:
        torch.set_num_threads(threads + 1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        before = settings()
        run = experiment(threads=threads)
        with contextlib.closing(run.rounds(out, executor="serial")) as rounds:
            seen += [settings() for _ in rounds]
        return [*seen, settings()], [before] * 4
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def keep_changed_on_resume(out, before, after, until=1):
    """All rounds are equally good, so that the first one is the best."""
    keys = {"rounds": 3, "lr": 1e-9, "report.select": "test"}
    begin(experiment(keep__models=before, **keys), out, until)
    experiment(keep__models=after, **keys).train(out, executor="serial")
    result = fedray.load(out)
    return result.models().round, result.best.round if after == "best" else 3


def rounds_take_the_arguments_of_train(out):
    """Without a folder, with callbacks, and as a continuation."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRAY_RESULTS", str(out.parent / "results"))
        rounds = experiment().rounds(executor="serial", callbacks=[seen.append])
        with contextlib.closing(rounds):
            first = next(rounds)
    begin(experiment(), out)
    rest = [done.round for done in experiment().rounds(out, executor="serial")]
    return ([done.round for done in seen], rest), ([first.round], [1, 2])


def train_loss_of_unequal_batches(out, stacked):
    """The loss of an epoch is that of its images, into whichever batches they are divided."""

    def loss(batch_size: int) -> float:
        run = experiment(batch_size=batch_size, stacked=stacked, lr=1e-9, rounds=1)
        done = run.train(out / f"{batch_size}", executor="serial")
        return done.metrics["train_loss"]

    return [loss(batch_size) for batch_size in (7, 16)], pytest.approx([loss(1000)] * 2, abs=1e-5)


def fine_tuning_of_a_resumed_run(out):
    """Dropout is drawn for a client's fine-tuning, whoever was tested before in its process."""
    architecture("dropping")(
        lambda channels, size: nn.Sequential(
            *(nn.Flatten(), nn.Linear(channels * size**2, 16), nn.ReLU(), nn.Dropout(0.5))
        )
    )
    run = experiment(model__group="dropping", lr=1.0, finetune_epochs=4)
    whole = run.train(out / "whole", executor="serial")
    begin(run, out / "resumed", until=1)
    resumed = run.train(out / "resumed", executor="serial")
    return [done.rounds[-1].metrics["finetuned_accuracy"] for done in (resumed, whole)]


EQUAL = [
    partial(group_of_a_notebook, members="mlp cnn2"),
    fine_tuning_of_a_resumed_run,
    rounds_take_the_arguments_of_train,
    partial(keep_changed_on_resume, before="best", after="last"),
    run_changes_the_process,
    buffers_that_are_not_saved_travel,
    *(partial(train_loss_of_unequal_batches, stacked=stacked) for stacked in (1, 4)),
    *(
        partial(frozen_layers_are_trained, method=method, stacked=stacked)
        for method, stacked in (
            *(("fedavg", 1), ("fedavg", 4), ("fedbabu", 1), ("fedbabu", 4)),
            *(("fedpac", 1), ("scaffold", 1), ("pfedme", 1), ("fedproto", 4)),
        )
    ),
]


def frozen_layers_with(out, **keys):
    """What cannot train the layers that a network leaves unfrozen, or would move the others."""
    architecture("frozen_stem")(lambda channels, size: _Frozen(channels))
    architecture("all_frozen")(lambda channels, size: _Frozen(channels).requires_grad_(False))
    experiment(**{"model__group": "frozen_stem", **keys}).train(out, executor="serial")


def phase_without_validation(out, first, later):
    """Only some phases have validation images, so that the best round could lie in those alone."""
    phases = [{"round": 2, "partition": later}]
    evolution = {"name": "repartition", "tests": "redrawn", "phases": phases}
    experiment(
        data__partition=first, data__evolution=evolution, data__validation_fraction=None
    ).train(out, executor="serial")


class _Nested(nn.Module):
    """A linear layer after an operation that torch cannot batch over models."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 16)

    def forward(self, images: Tensor) -> Tensor:
        nested = torch.nested.as_nested_tensor([self.layer(images.flatten(1))])
        return nested.to_padded_tensor(0.0)[0]


def operation_that_cannot_be_batched(out):
    """PyTorch says "Batching rule not implemented", and the user has to know about stacking."""
    architecture("nested")(lambda channels, size: _Nested(channels * size**2))
    experiment(model__group="nested", stacked=4).train(out, executor="serial")


REFUSED = {
    operation_that_cannot_be_batched: "set stacked=1",
    partial(keep_changed_on_resume, before="last", after="best"): "has no models of the best round",
    partial(
        phase_without_validation,
        first={"name": "dominant_class", "shots": 4},
        later={"name": "iid"},
    ): "dominant_class draws few images",
    partial(
        phase_without_validation,
        first={"name": "iid"},
        later={"name": "dominant_class", "shots": 4},
    ): "dominant_class draws few images",
    method_of_a_notebook_changes: "code.algorithm.minecell was ",
    partial(group_of_a_notebook, members="mlp cnn3"): "code.model group.cellgroup was ",
    partial(frozen_layers_with, algorithm="fedbabu", model__group="all_frozen"): "unfrozen",
    partial(
        frozen_layers_with, privacy__mode="local", privacy__clip_norm=1, privacy__noise_multiplier=1
    ): "privacy.mode=local",
}


def named(case) -> str:
    """Return the name of a case, with the values that it is called with."""
    values = getattr(case, "keywords", {}).values()
    return " ".join([getattr(case, "func", case).__name__, *map(str, values)])


@pytest.mark.parametrize("case", REFUSED, ids=named)
def test_refused(case, tmp_path):
    with pytest.raises(UserError, match=REFUSED[case]):
        case(tmp_path / "run")


@pytest.mark.parametrize("case", EQUAL, ids=named)
def test_equal(case, tmp_path):
    left, right = case(tmp_path / "run")
    assert left == right
