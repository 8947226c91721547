"""FedDF by hand: the ensemble's logits, the student's steps, means inside architectures."""

from __future__ import annotations

from math import cos, pi

import torch
import torch.nn.functional as F
from reference import THREE, ReferenceClients, set_parameters, weighted_mean
from tensors import same

from fedray.models import buffer_names

SMALL = {"algorithm.server_epochs": 2, "algorithm.server_batch_size": 16}


def test_algorithm_3_as_a_straight_loop(run):
    keys = {**SMALL, "algorithm.temperature": 2, "algorithm.clip": 0.5, "local_epochs": 2}
    done = run("feddf", {**THREE, **keys})
    straight, data = ReferenceClients(done), done.assembly.data
    kinds, public = done.assembly.models.architectures, data.public.index
    images = torch.from_numpy(data.images.images[public]).float() * (2 / 255) - 1
    groups = {kind: [k for k in range(3) if kinds[k] == kind] for kind in kinds}
    sizes = {k: len(straight.labels(k)) for k in range(3)}
    modules = [
        torch.nn.Sequential(*pair) for pair in zip(straight.bodies, straight.heads, strict=True)
    ]
    for round_ in (1, 2):
        for k in range(3):
            straight.train(k, round_, lambda _, logits, labels: F.cross_entropy(logits, labels))
        with torch.no_grad():
            teacher = sum(module(images) for module in modules) / 3
        for members in groups.values():
            mean = weighted_mean({k: modules[k] for k in members}, sizes)
            student = modules[members[0]]
            set_parameters(student.parameters(), mean)
            adam = torch.optim.Adam(student.parameters(), 0.001)
            stream = straight.streams.torch("server batches", round_=round_)
            chunks = [
                chunk
                for _ in range(2)
                for chunk in torch.randperm(len(images), generator=stream).split(16)
            ]
            for step, chunk in enumerate(chunks):
                adam.param_groups[0]["lr"] = 0.001 * (1 + cos(pi * step / len(chunks))) / 2
                p = F.softmax(teacher[chunk] / 2, 1)
                q = F.log_softmax(student(images[chunk]) / 2, 1)
                adam.zero_grad()
                F.kl_div(q, p, reduction="batchmean").backward()
                torch.nn.utils.clip_grad_norm_(student.parameters(), 0.5)
                adam.step()
            for k in members[1:]:
                set_parameters(modules[k].parameters(), student.parameters())
    for kind, members in groups.items():
        found = done.servers[-1]["models"][kind]
        for mine, value in zip(modules[members[0]].parameters(), found.values(), strict=True):
            torch.testing.assert_close(mine.detach(), value, atol=2e-5, rtol=0)


def test_without_steps_it_is_fedavg_inside_each_architecture(run):
    changes = {"model.group": "cnn3"}
    public = {"data.public": {"name": "share", "fraction": 0.2}}
    plain = run("feddf", {**changes, "algorithm.server_epochs": 0})
    fedavg = run("fedavg", {**changes, **public})
    assert same(plain.servers[-1]["models"]["cnn3"], fedavg.servers[-1]["model"])
    taught = run("feddf", {**changes, **SMALL})
    assert not same(plain.servers[-1]["models"]["cnn3"], taught.servers[-1]["models"]["cnn3"])
    buffers = buffer_names(taught.assembly.models.empty("cnn3"))
    assert buffers <= taught.servers[-1]["models"]["cnn3"].keys()


def test_an_architecture_without_participants_learns_from_the_others(run):
    done = run("feddf", {**SMALL, "participation": 0.25, "rounds": 1, "model.group": "digits"})
    (participant,) = done.results[1].participants
    architectures = done.assembly.models.architectures
    before, after = (server["models"] for server in done.servers)
    assert all(not same(before[name], after[name]) for name in set(architectures))
    assert not done.assembly.algorithm.has_global_model(done.servers[-1])
    assert architectures[participant] in after
