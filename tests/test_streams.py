"""Random streams: each its own, the same everywhere, and all of a run's draws come from them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tensors import CPU

from fedray.base.streams import Streams
from fedray.core import ClientState, fit
from fedray.data import FederatedData
from fedray.runtime.groups import GroupRunner


def test_values_are_the_same_on_every_machine():
    streams = Streams(0)
    assert streams.entropy("batches") == 7_883_774_340_374_615_953
    assert streams.entropy("batches", round_=3, client=7) == 420_336_543_251_626_121
    assert streams.numpy("partition").integers(1_000_000, size=3).tolist() == [
        827847,
        512031,
        300137,
    ]
    generator = streams.torch("prompts")
    assert torch.randint(1_000_000, (3,), generator=generator).tolist() == [577292, 62873, 803608]


def test_every_seed_purpose_round_and_client_has_its_own_stream():
    keys = itertools.product(range(4), ("batches", "prompts", "weights/mlp"), range(12), range(12))
    found = [
        Streams(seed).entropy(purpose, round_=round_, client=client)
        for seed, purpose, round_, client in keys
    ]
    assert len(set(found)) == len(found) == 4 * 3 * 12 * 12
    assert all(0 <= value < 2**63 for value in found)


def test_streams_are_uncorrelated():
    draws = np.stack(
        [
            Streams(0).numpy("batches", round_=round_, client=client).standard_normal(10_000)
            for round_, client in itertools.product((1, 2), (0, 1))
        ]
        + [Streams(1).numpy("batches", round_=1).standard_normal(10_000)]
    )
    correlations = np.corrcoef(draws)[~np.eye(len(draws), dtype=bool)]
    assert np.abs(correlations).max() < 0.05


def test_a_stream_starts_anew_every_time_it_is_asked_for():
    streams = Streams(3)
    first = streams.numpy("partition").random(5)
    streams.numpy("partition").random(100)
    assert (streams.numpy("partition").random(5) == first).all()
    assert torch.equal(
        torch.rand(5, generator=streams.torch("x")), torch.rand(5, generator=streams.torch("x"))
    )


def orders(assembly, client: int, round_: int) -> list[list[float]]:
    """The images of a client's steps, in their order."""
    context = GroupRunner(assembly, CPU).client(client, round_)
    seen: list[list[float]] = []
    local = assembly.algorithm.begin(context, ClientState(context.initial()), None)

    def loss(batch):
        seen.extend(batch.inputs.values.flatten(1).tolist())
        return local.model(batch.inputs).logits.sum() * 0

    fit(local, loss)
    return seen


def test_two_clients_two_rounds_and_two_epochs_shuffle_differently(assemble):
    assembly = assemble("local", {"data.clients": 2, "local_epochs": 2})
    data = assembly.data
    assembly.__dict__["data"] = FederatedData(data.images, (data.train[0],) * 2, data.test)
    first = orders(assembly, 0, 1)
    assert orders(assembly, 0, 1) == first
    assert orders(assembly, 1, 1) != first
    assert orders(assembly, 0, 2) != first
    half = len(first) // 2
    assert first[:half] != first[half:]
    assert sorted(first[:half]) == sorted(first[half:]) == sorted(orders(assembly, 1, 1)[:half])


def test_seeds_give_other_weights_partitions_and_batches(assemble):
    zero, repeated, one = (assemble("local", {"seed": seed}) for seed in (0, 0, 1))
    for name in ("mlp", "cnn2"):
        a, b, c = (assembly.models.initial(name) for assembly in (zero, repeated, one))
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert not any(torch.equal(a[key], c[key]) for key in a)
    assert zero.data.sha256 == repeated.data.sha256 != one.data.sha256
    one = assemble("local", {"seed": 1}, zero.data)
    assert orders(zero, 0, 1) == orders(repeated, 0, 1) != orders(one, 0, 1)
    assert sorted(orders(zero, 0, 1)) == sorted(orders(one, 0, 1))


def test_initial_weights_are_shared_or_independent(assemble):
    shared = assemble("local")
    independent = assemble("local", {"model.init": "independent"})
    weights = "extractor.backbone.1.weight"
    assert torch.equal(*(shared.models.initial("mlp", client)[weights] for client in (0, 2)))
    a, b = (independent.models.initial("mlp", client)[weights] for client in (0, 2))
    assert not torch.equal(a, b)


def test_participants_are_uniform_without_replacement(run):
    done = run(
        "local",
        {
            "rounds": 40,
            "data.clients": 4,
            "participation": 0.5,
            "eval_every": 0,
            "data.samples": 60,
            "batch_size": 100,
        },
    )
    cohorts = [result.participants for result in done.results[1:]]
    assert all(len(set(cohort)) == 2 and sorted(cohort) == cohort for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=4)
    assert counts.min() >= 10  # 20 expected each, sd 3.2
    assert len({tuple(cohort) for cohort in cohorts}) == 6


@pytest.mark.parametrize("method", ["local", "fedtsp"])
def test_a_run_leaves_the_global_generators_alone(run, method):
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = run(method, {"model.group": "digits"})
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    torch.manual_seed(12)
    assert first.same_clients_as(run(method, {"model.group": "digits"}))
