"""Local training: what learns, what is counted, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tensors import CPU, same

from fedray.core import ClientState, LocalContext, LocalTraining, fit
from fedray.core.stacked import refusal
from fedray.core.training import batch_sizes, batches_of, with_extra
from fedray.data import FederatedData
from fedray.models import is_normalisation
from fedray.runtime.groups import GroupRunner

NORMALISED = {"model.group": "cnn3", "local_epochs": 2, "optimizer.momentum": 0.9}


@pytest.fixture
def local(assemble):
    """`local(client)` gives what one client's training works on; one runtime for all."""
    runtime = GroupRunner(assemble("local", NORMALISED), CPU)

    def local(client: int = 0, **fields) -> LocalContext:
        found = runtime.client(client, 1)
        return LocalContext(found, found.load(found.initial()), ClientState({}), None, **fields)

    return local


def cross_entropy(context: LocalContext, seen=lambda: None):
    def loss(batch):
        seen()
        value = F.cross_entropy(context.model(batch.inputs).logits, batch.labels)
        return value + sum((tensor**2).sum() for tensor in context.extra.values())

    return loss


def test_steps_are_batches_and_the_loss_is_that_of_the_last_epoch(local):
    context, losses = local(), []
    batches = -(-len(context.client.train) // context.client.setting.training.batch_size)

    def loss(batch):
        losses.append((cross_entropy(context)(batch), len(batch.labels)))
        return losses[-1][0]

    trained = fit(context, loss, repeat=3)
    assert trained.steps == 2 * batches
    last = losses[2::3][batches:]
    mean = sum(float(value) * size for value, size in last) / len(context.client.train)
    assert context.client.train_losses == [pytest.approx(mean)]


def test_only_what_is_trainable_learns_and_the_model_is_whole_again(local):
    context = local(trainable={"head.weight"})
    before = context.client.save(context.model)
    norms = [module for module in context.model.modules() if is_normalisation(module)]
    training = []
    fit(context, cross_entropy(context, lambda: training.extend(n.training for n in norms)))
    after = context.client.save(context.model)
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"head.weight"}
    assert norms
    assert not any(training)
    assert all(parameter.requires_grad for parameter in context.model.parameters())
    assert all(module.training for module in context.model.modules())


@pytest.mark.parametrize("tested", [True, False])
def test_all_layers_train_whatever_the_model_did_before(local, tested):
    context = local()
    context.model.train(not tested)
    context.model.extractor.eval()
    training = []
    modules = [*context.model.modules()]
    fit(context, cross_entropy(context, lambda: training.extend(m.training for m in modules)))
    assert all(training)


def test_extra_parameters_learn_and_keep_no_gradient(local):
    given = torch.ones(3)
    context = with_extra(local(), {"scale": given})
    trained = fit(context, cross_entropy(context))
    scale = trained.tensors["scale"]
    assert bool((scale < 1).all())
    assert torch.equal(given, torch.ones(3))
    assert (scale.requires_grad, scale.grad) == (False, None)


def test_a_client_does_not_inherit_the_momentum_of_another(local, assemble):
    for client in (0, 2):  # one model, one optimiser after the other
        context = local(client)
        fit(context, cross_entropy(context))
    alone = GroupRunner(assemble("local", NORMALISED), CPU).client(2, 1)
    fresh = LocalContext(alone, alone.load(alone.initial()), ClientState({}), None)
    fit(fresh, cross_entropy(fresh))
    assert same(context.client.save(context.model), alone.save(fresh.model))


def test_another_schedule_has_another_optimizer(local):
    context = local()
    fit(context, cross_entropy(context))
    before = [parameter.detach().clone() for parameter in context.model.parameters()]
    still = replace(context, client=context.client.with_schedule(1, lr=0.0))
    fit(still, cross_entropy(still))
    after = context.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_loss_that_is_not_finite_stops_the_training(local):
    context = local()
    with pytest.raises(FloatingPointError, match=r"the training loss became nan; lower lr"):
        fit(context, lambda batch: context.model(batch.inputs).logits.sum() * float("nan"))


@pytest.mark.parametrize(
    ("count", "drop_last", "sizes"),
    [
        (8, False, [4, 4]),
        (9, False, [4, 5]),  # batch normalisation cannot train on one image
        (10, False, [4, 4, 2]),
        (1, False, [1]),
        (9, True, [4, 4]),
    ],
)
def test_batches_of_an_epoch(assemble, count, drop_last, sizes):
    config = assemble("local").setting.training
    config = replace(config, batch_size=4, drop_last=drop_last)
    found = batches_of(torch.arange(count), batch_sizes(count, config))
    assert [len(batch) for batch in found] == sizes
    assert len(set(torch.cat(list(found)).tolist())) == sum(sizes)


def test_every_client_and_round_has_random_views_of_its_own(assemble):
    changes = {"data.augment": "flip_crop", "shuffle": False, "rounds": 3}
    runtime = GroupRunner(assemble("local", changes), CPU)

    def views(client: int, round_: int) -> torch.Tensor:
        """What the loss sees of the same images, in the same order."""
        found = replace(runtime.client(client, round_), train=runtime.client(0, 1).train)
        context = LocalContext(found, found.load(found.initial()), ClientState({}), None)
        seen = []

        def loss(batch):
            seen.append(batch.inputs.values)
            return F.cross_entropy(context.model(batch.inputs).logits, batch.labels)

        fit(context, loss)
        return torch.cat(seen)

    assert torch.equal(views(0, 1), views(0, 1))
    assert not torch.equal(views(0, 1), views(1, 1))
    assert not torch.equal(views(0, 1), views(0, 2))


@pytest.mark.parametrize("count", [1, 16, 17, 33])
def test_every_image_is_seen_once_an_epoch_and_no_batch_has_one_left_over(assemble, count):
    data = assemble("local", {"data.clients": 1}).data
    few = FederatedData(data.images, (data.train[0][:count],), data.test)
    client = GroupRunner(assemble("local", {"data.clients": 1}, few), CPU).client(0, 1)
    model, batches = client.load(client.initial()), []

    def loss(batch):
        batches.append(batch.inputs.values.flatten(1))
        return model(batch.inputs).logits.sum() * 0

    state = ClientState(client.initial())
    trained = fit(LocalContext(client, model, state, None), loss)
    assert trained.steps == len(batches)
    seen = torch.cat(batches)
    expected = torch.from_numpy(data.images.images[data.train[0][:count]]).flatten(1) * (2 / 255)
    assert sorted(seen.tolist()) == sorted((expected - 1).tolist())
    assert [len(batch) for batch in batches] == {1: [1], 16: [16], 17: [17], 33: [16, 17]}[count]


def test_a_batch_knows_the_positions_of_its_images(local):
    context, seen = local(), []
    everything = context.client.train.labels

    def loss(batch):
        assert torch.equal(everything[batch.positions], batch.labels)
        seen.append(batch.positions)
        return cross_entropy(context)(batch)

    fit(context, loss)
    counts = torch.bincount(torch.cat(seen))
    assert counts.tolist() == [2] * len(everything)
    passed = [batch.positions for batch in context.client.batches(context.client.train, 7)]
    assert torch.cat(passed).tolist() == [*range(len(everything))]


def test_the_learning_rate_may_fall_within_a_training(local):
    rates, shares = [], []
    context = local()
    optimizer = context.client.skeleton.optimizer(context.client.setting.training)

    def decay(share):
        shares.append(share)
        return 1 - share

    after = lambda: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    trained = fit(context, cross_entropy(context), after_batch=after, decay=decay)
    assert shares == pytest.approx([n / trained.steps for n in range(trained.steps)])
    assert rates == pytest.approx([0.05 * (1 - share) for share in shares])
    fit(context, cross_entropy(context), after_batch=after)
    assert rates[-1] == 0.05


class Observing(LocalTraining):
    def observe(self, output, batch, local):
        values = (output.features, output.logits)
        assert not any(value.requires_grad for value in values)
        local.notes.setdefault("sizes", []).append(len(batch.labels))


def test_each_batch_is_observed_once_and_by_clients_that_do_not_stack(local, assemble):
    context, method = local(), Observing().with_setting(assemble("local").setting)
    trained = method.train(context)
    assert len(context.notes["sizes"]) == trained.steps
    assert sum(context.notes["sizes"]) == 2 * len(context.client.train)
    assert "training loop" in refusal(Observing)
    assert refusal(LocalTraining) == ""
