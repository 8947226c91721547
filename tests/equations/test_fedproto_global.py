"""Global FedProto's equations by hand, and FedAvg where its term is absent."""

from __future__ import annotations

from math import log

import pytest
import torch
from tensors import CPU

from fedray.algorithms.prototypes.class_prototypes import local_prototypes
from fedray.algorithms.prototypes.fedproto_global import FedProtoGlobal
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.groups import GroupRunner

ONE_KIND = {"model.group": "cnn2"}


def update(weight, samples, classes, vectors, counts) -> FedProtoGlobal.up:
    return FedProtoGlobal.up(
        model={"w": torch.tensor([weight])},
        samples=samples,
        classes=torch.tensor(classes),
        vectors=torch.tensor(vectors),
        counts=torch.tensor(counts),
    )


def state() -> dict[str, dict[str, torch.Tensor]]:
    present = torch.zeros(10, dtype=torch.bool)
    present[7] = True
    vectors = torch.full((10, 2), 9.0)
    return {"model": {"w": torch.zeros(1)}, "vectors": vectors, "present": present}


@pytest.mark.parametrize(("how", "expected"), [("weighted", [0.75, 2.0]), ("uniform", [0.5, 4.0])])
def test_eq6_classes_weigh_by_their_samples_and_models_by_all(assemble, how, expected):
    assembly = assemble("fedproto_global", {"algorithm.proto_agg": how})
    uplinks = {
        0: update(1.0, 30, [0, 1], [[1.0, 0.0], [4.0, 4.0]], [3, 27]),
        2: update(5.0, 10, [0], [[0.0, 8.0]], [1]),
    }
    found = assembly.algorithm.server_update(state(), uplinks, assembly.server(CPU))
    assert found["model"]["w"].tolist() == [2.0]
    vectors, present = found["vectors"], found["present"]
    assert vectors[0].tolist() == expected
    assert vectors[1].tolist() == [4.0, 4.0]
    assert vectors[7].tolist() == [9.0, 9.0]  # nobody uploaded it: it stays
    assert present.nonzero().flatten().tolist() == [0, 1, 7]


def test_eq7_by_hand(assemble):
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])

    def loss(*present: bool) -> float:
        down = FedProtoGlobal.down(
            model={},
            vectors=torch.tensor([[0.0, 0.0], [3.0, 2.0]]),
            present=torch.tensor(present),
        )
        method = assemble("fedproto_global", {"algorithm.mu": 2}).algorithm
        output = ClassifierOutput(features, torch.zeros(2, 2))
        local = LocalContext(None, None, ClientState({}), down)
        return method.loss(output, Batch(Pixels(features), labels), local).item()

    # squared distances: 1 + 4 and 0 + 4, over B*d = 4 entries
    assert loss(True, True) == pytest.approx(log(2) + 2 * 9 / 4)
    assert loss(False, True) == pytest.approx(log(2) + 2 * 4 / 4)
    assert loss(False, False) == pytest.approx(log(2))


def test_a_single_clients_prototypes_are_the_global_models(run):
    done = run("fedproto_global", {**ONE_KIND, "data.clients": 1})
    client = GroupRunner(done.assembly, CPU).client(0, 2)
    prototypes = done.servers[-1]
    expected = local_prototypes(client, client.load(done.servers[-1]["model"]))
    assert prototypes["present"].nonzero().flatten().tolist() == expected["classes"].tolist()
    torch.testing.assert_close(prototypes["vectors"][expected["classes"]], expected["vectors"])
