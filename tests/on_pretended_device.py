"""The pretended accelerator, and devices whose memory runs out.

`test_devices.py` runs this file in a process of its own: autograd knows the devices that were there
at the first backward pass.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prompts.fedotp import transport_plan
from fedray.base.errors import ClientError, ServerError, UserError
from fedray.config import Experiment
from fedray.core import Client, algorithms
from fedray.core.training import batch_sizes, batches_of
from fedray.laws.conformance import small_experiment
from fedray.laws.traces import Violation
from fedray.runtime import devices
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from tests.device_laws import FEW, check_batches, check_device, count_steps
from tests.pretended_device import COUNTS, MixedDevicesError, device

PRETENDED = {"gpus": 1.0, "server_gpus": 0.5}
CPU = torch.device("cpu")


@pytest.fixture
def pretended(monkeypatch):
    """A machine with the pretended accelerator and no other."""
    monkeypatch.setattr(devices, "accelerator", lambda: device().type)
    with sdpa_kernel(SDPBackend.MATH):  # the one way to attend that both devices have
        yield devices.pick_device(1)


def rounds(experiment, out, where):
    """A session of the run on a device."""
    return Session(experiment, out, lambda assembly: SerialExecutor(assembly, where)).rounds()


# --- methods that forget the device -------------------------------------------------------------


class OnTheCpu(FedAvg):
    """Its loss multiplies by a tensor that was never moved."""

    name = "on_the_cpu"

    def loss(self, output, batch, local):
        weights = torch.linspace(0.5, 1, self.setting.num_classes)
        return torch.nn.functional.cross_entropy(output.logits * weights, batch.labels)


class ServerOnTheCpu(FedAvg):
    """Its server's step adds to the model what it made on the server's device."""

    name = "server_on_the_cpu"

    def server_update(self, state, uplinks, server):
        after = super().server_update(state, uplinks, server)
        nothing = torch.zeros(1, device=server.device)
        return {**after, "model": {name: w + nothing for name, w in after["model"].items()}}


class Doubling(FedAvg):
    """It counts in float64, which not every accelerator has."""

    name = "doubling"

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) + output.logits.double().sum().float() * 0


@pytest.fixture
def broken(monkeypatch):
    """`broken(method)` registers a method that works on the CPU."""

    def add(method):
        algorithms.names()  # all are read: what is read later would be forgotten again
        monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
        algorithms.add(method)
        return method.name

    return add


@pytest.mark.parametrize(
    ("method", "error", "said"),
    [
        (
            OnTheCpu,
            ClientError,
            r"step client_update: MixedDevicesError: aten.mul.Tensor got tensors",
        ),
        (ServerOnTheCpu, ServerError, r"step server_update: MixedDevicesError: aten.add.Tensor"),
        (Doubling, ClientError, r"TypeError: pretended:0 does not support torch.float64"),
    ],
)
def test_a_method_that_forgets_the_device_fails_there_alone(
    assemble, tmp_path, pretended, broken, method, error, said
):
    name = broken(method)
    changes = {"model.group": "mlp", "rounds": 1, "data.samples": 60, "data.clients": 2}
    list(rounds(assemble(name, changes).experiment, tmp_path / "cpu", CPU))
    there = assemble(name, {**changes, **PRETENDED}).experiment
    with pytest.raises(error, match=said):
        list(rounds(there, tmp_path / "there", pretended))


# --- what the device itself refuses --------------------------------------------------------------


def test_devices_do_not_mix_but_for_copies_numbers_and_indices():
    there, here = torch.ones(2, 3, device=device()), torch.ones(2, 3)
    for mixed in (
        lambda: there + here,
        lambda: there @ here.T,
        lambda: torch.cat([there, here]),
        lambda: here.clone().add_(there),
        lambda: here[there.long()],
        lambda: torch.where(there > 0, there, here),
        lambda: torch.randn(2, device=device(), generator=torch.Generator()),
    ):
        with pytest.raises(MixedDevicesError):
            mixed()
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()
    assert (there * torch.tensor(2.0)).cpu().tolist() == [[2.0] * 3] * 2
    assert there[torch.tensor([1])].shape == (1, 3)
    assert here.copy_(there * 3).tolist() == [[3.0] * 3] * 2


# --- what it counts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "operators", "copies", "synchronisations"),
    [
        (lambda x: (x * 2).sum(), 2, 0, 0),
        (lambda x: x.T.view(3, 2)[0].detach(), 0, 0, 0),
        (lambda x: torch.empty_like(x), 0, 0, 0),
        (lambda x: x.bfloat16(), 1, 0, 0),
        (lambda _: torch.ones(2, 3).to(device()), 0, 1, 0),
        (lambda _: torch.tensor([1, 2], device=device()), 0, 1, 0),
        (lambda x: x.copy_(torch.ones(2, 3)), 0, 1, 0),
        (lambda x: x[torch.tensor([1])], 1, 1, 0),
        (lambda x: x.cpu(), 0, 0, 1),
        (lambda x: torch.ones(2, 3).copy_(x), 0, 0, 1),
        (lambda x: x.tolist(), 0, 0, 1),
        (lambda x: float(x[0, 0]), 1, 0, 1),
        (lambda x: bool(x.isfinite().all()), 6, 0, 1),
        (lambda x: x.nonzero(), 1, 0, 1),
        (lambda x: x[x > 0], 2, 0, 1),
        (lambda x: x.repeat_interleave(2, 0), 1, 0, 0),
    ],
)
def test_the_device_counts_what_a_gpu_would_do(operation, operators, copies, synchronisations):
    there, before = torch.ones(2, 3).to(device()), Counter(COUNTS)
    operation(there)
    expected = {
        "operators": operators, "copies": copies, "synchronisations": synchronisations,
    }  # fmt: skip
    assert COUNTS - before == Counter(expected)


def test_the_transport_on_an_accelerator_looks_at_its_end_every_ten_iterations():
    cost = torch.rand(2, 3, 2, 7, generator=torch.Generator().manual_seed(0))
    for threshold, looks in ((0.1, 1), (0.03, 2), (0.0, 2)):  # ends after 5, 14; never
        here = transport_plan(cost, 0.8, 0.1, threshold, 25)
        before = Counter(COUNTS)
        there = transport_plan(cost.to(device()), 0.8, 0.1, threshold, 25)
        assert (COUNTS - before)["synchronisations"] == looks
        assert torch.equal(there.cpu(), here)


# --- the laws ------------------------------------------------------------------------------------

WAITING = ("fedfa_augmentation", "fedotp")
"""Methods that copy or wait between batches: one draws its noise on the CPU, so that every device
gets the same; the other looks every ten iterations whether its transport has converged."""


@pytest.mark.parametrize("method", algorithms.names())
def test_a_method_gives_the_cpus_numbers_on_the_device(method):
    check_device(small_experiment(method))


@pytest.mark.parametrize("method", [name for name in algorithms.names() if name not in WAITING])
def test_no_tensor_moves_between_batches(method):
    check_batches(small_experiment(method))


@pytest.mark.parametrize("method", WAITING)
def test_the_methods_that_wait_between_batches_are_found(method):
    with pytest.raises(Violation, match="in the batches of two rounds; create or move tensors"):
        check_batches(small_experiment(method))


def of_clients(method: str, clients: int) -> Experiment:
    """Clients with equally many images, which all take part."""
    keys = {"data.clients": clients, "data.samples": 30 * clients, "participation": 1.0}
    keys |= {"gpus": 1, "data.partition": "iid", "rounds": 2}
    return from_tree(small_experiment(method).tree(), keys.items())


@pytest.mark.parametrize(
    ("method", "waits"),
    [("fedavg", 0), ("local", 0), ("scaffold", 0), ("fedbn", 0), ("fedtsp", 1), ("promptfl", 0)],
)
def test_the_clients_of_a_group_share_their_copies_and_waits(method, waits):
    """Each client waits for its classes alone if it uploads their prototypes."""
    few, many = (count_steps(of_clients(method, clients)).last for clients in (3, 6))
    assert many["copies"] == few["copies"] <= 5
    assert many["synchronisations"] == few["synchronisations"] + 3 * waits
    assert few["synchronisations"] <= 5 + 3 * waits


def test_a_loss_that_is_read_at_the_end_of_a_group_is_its_clients_failure(monkeypatch):
    made = Assembly(of_clients("fedavg", 3))
    loss = made.algorithm.loss

    def diverges(output, batch, local):
        return loss(output, batch, local) / (local.client.id != 1)

    monkeypatch.setitem(vars(made.algorithm), "loss", diverges)
    down = FedAvg.down(made.algorithm.init_server(made.server(CPU))["model"])
    members = [Member(client, None, down) for client in range(3)]
    with pytest.raises(ClientError, match=r"^client 1, round 1, step .*training loss became inf"):
        GroupRunner(made, device()).run_group("client_update", 1, members)


def bare_loop(client: Client) -> None:
    """Train on a client's batches as a script does."""
    config, model = client.setting.training, client.skeleton.model
    stored, labels = client.tensors(client.train)
    optimizer = config.optimizer.make(model.parameters(), config.lr)
    for order in client.orders():
        for index in batches_of(order, batch_sizes(len(labels), config)):
            optimizer.zero_grad()
            batch = client.train.batch(stored[index], labels[index])
            cross_entropy(model(batch.inputs).logits, batch.labels).backward()
            optimizer.step()


def test_clients_start_the_operators_of_a_bare_loop():
    """And five more: the model is overwritten (2) and copied (2), and the losses are stacked."""
    experiment = from_tree(of_clients("fedavg", 6).tree(), [("batch_size", FEW)])
    runtime = GroupRunner(Assembly(experiment), device())
    clients = [runtime.client(client, 2) for client in range(6)]
    before = Counter(COUNTS)
    for client in clients:
        bare_loop(client)
    bare, ours = COUNTS - before, count_steps(experiment).last
    assert ours["operators"] <= bare["operators"] + 5 * 6 + 3  # uploads and losses are packed


# --- memory that runs out ------------------------------------------------------------------------


def used_up(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...")


def test_a_client_s_memory_that_runs_out_is_one_sentence_with_the_keys(
    assemble, tmp_path, pretended, monkeypatch
):
    monkeypatch.setattr(FedAvg, "loss", used_up)
    experiment = assemble("fedavg", {"model.group": "mlp", **PRETENDED}).experiment
    with pytest.raises(UserError, match=r"^client 0, round 1, step client_update: the memory of"):
        list(rounds(experiment, tmp_path, pretended))


def test_the_cpu_s_too(assemble, tmp_path, monkeypatch):
    def allocate(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(FedAvg, "loss", allocate)
    experiment = assemble("fedavg", {"model.group": "mlp", "workers": 1}).experiment
    with pytest.raises(UserError, match=r"step client_update: memory ran out; lower workers"):
        list(rounds(experiment, tmp_path, CPU))


def test_the_server_s_memory_has_keys_of_its_own(assemble, tmp_path, pretended, monkeypatch):
    monkeypatch.setattr(FedAvg, "server_update", used_up)
    experiment = assemble("fedavg", {"model.group": "mlp", **PRETENDED}).experiment
    with pytest.raises(UserError, match=r"^the server, round 1: the memory .* server_gpus=0$"):
        list(rounds(experiment, tmp_path, pretended))
