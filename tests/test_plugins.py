"""One file, or one class, adds a plug-in; FedProx as the proof."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field

from fedray.algorithms import algorithms
from fedray.algorithms.fedavg import FedAvg, GlobalModel
from fedray.client import Batch
from fedray.config import Frozen
from fedray.errors import UserError
from fedray.models import build
from fedray.plugins import Registry

# --- the registry --------------------------------------------------------------------------------

METHOD = """
from {package} import methods

@methods.add
class {cls}:
    name = "{name}"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package({file: (class, name)})` writes a package of plug-ins and gives its registry."""

    def package(files: dict[str, tuple[str, str]]) -> Registry:
        name = f"plugins_of_{tmp_path.name}".replace("-", "_")
        folder = tmp_path / name
        folder.mkdir()
        head = f"from fedray.plugins import Registry\nmethods = Registry('method', '{name}')\n"
        (folder / "__init__.py").write_text(head)
        for file, (cls, called) in files.items():
            text = METHOD.format(package=name, cls=cls, name=called)
            (folder / f"{file}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return __import__(name).methods

    yield package
    for module in [m for m in sys.modules if m.startswith("plugins_of_")]:
        del sys.modules[module]


def test_a_file_in_the_package_is_a_method(package):
    methods = package({"mine": ("Mine", "mine"), "other": ("Other", "other")})
    assert methods.get("mine").__name__ == "Mine"
    # found by its file's name: nothing else was imported
    assert f"{methods.package}.other" not in sys.modules
    assert methods.names() == ["mine", "other"]


def test_a_name_need_not_be_the_files(package):
    methods = package({"some_file": ("Mine", "mine")})
    assert methods.get("mine").__name__ == "Mine"


def test_an_unknown_name_gets_the_nearest(package):
    methods = package({"a": ("FedProto", "fedproto"), "b": ("Local", "local")})
    with pytest.raises(UserError, match=r"there is no method 'fedprot'\. Did you mean 'fedproto'"):
        methods.get("fedprot")
    with pytest.raises(UserError, match=r"there is no method 'xyz'\. Valid: fedproto, local\."):
        methods.get("xyz")


@pytest.mark.parametrize("name", ["", "a.b", "../local", "__init__", "1"])
def test_a_name_that_is_none(package, name):
    with pytest.raises(UserError, match="there is no method"):
        package({"a": ("Local", "local")}).get(name)


def test_two_methods_of_one_name(package):
    methods = package({"a": ("One", "same"), "b": ("Two", "same")})
    with pytest.raises(ValueError, match="two methods are called 'same'"):
        methods.names()


def test_the_shipped_methods_are_there():
    assert {"local", "fedavg", "fedproto", "fedtgp", "alignfed", "fedtsp"} <= set(
        algorithms.names()
    )


# --- a method in one class -----------------------------------------------------------------------


class FedProx(FedAvg):
    """FedAvg whose clients are held near the global model (Li et al., arXiv:1812.06127)."""

    name = "fedprox_sketch"
    paper = "Li et al., MLSys 2020, arXiv:1812.06127"

    class HParams(Frozen):
        mu: float = Field(1.0, ge=0)
        """μ of Eq. (2); 0 is FedAvg."""

    def loss(self, model, batch: Batch, down: GlobalModel):
        loss = super().loss(model, batch, down)
        if self.hp.mu == 0:
            return loss
        return loss + proximal_term(model, down.weights, self.hp.mu)


def proximal_term(model, weights, mu: float):
    """mu/2 ||w - w0||^2 over the parameters."""
    parameters = model.named_parameters()
    return mu / 2 * sum((w - weights[name]).square().sum() for name, w in parameters)


@pytest.fixture
def fedprox(monkeypatch):
    monkeypatch.setitem(algorithms._classes, FedProx.name, FedProx)
    return FedProx.name


ONE_KIND = {"model.group": "cnn2", "lr": 0.1}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_mu_0_is_fedavg_bit_for_bit_and_mu_1_is_not(run, fedprox, participation):
    changes = {**ONE_KIND, "participation": participation}
    fedavg = run("fedavg", changes)
    free = run(fedprox, {**changes, "algorithm.mu": 0})
    held = run(fedprox, {**changes, "algorithm.mu": 1})
    for round_, state in enumerate(fedavg.servers):
        assert all(torch.equal(free.servers[round_][name], state[name]) for name in state)
        assert fedavg.results[round_].per_client == free.results[round_].per_client
    assert not torch.equal(held.servers[-1]["head.weight"], fedavg.servers[-1]["head.weight"])
    assert fedavg.results[1].up == held.results[1].up


def test_the_terms_gradient_is_mu_times_the_distance():
    def model(seed):
        return build(
            "mlp",
            channels=1,
            image_size=8,
            num_classes=10,
            feature_dim=16,
            generator=torch.Generator().manual_seed(seed),
        )

    w, w0 = model(1), {name: p.detach() for name, p in model(2).named_parameters()}
    names, parameters = zip(*w.named_parameters(), strict=True)
    for name, p, gradient in zip(
        names, parameters, torch.autograd.grad(proximal_term(w, w0, 0.3), parameters), strict=True
    ):
        torch.testing.assert_close(gradient, 0.3 * (p.detach() - w0[name]))
        assert float(gradient.abs().max()) > 0


def test_the_term_by_hand_is_squared():
    line = torch.nn.Linear(2, 1)
    with torch.no_grad():
        line.weight.copy_(torch.tensor([[3.0, 4.0]]))
        line.bias.fill_(2.0)
    w0 = {"weight": torch.zeros(1, 2), "bias": torch.tensor([1.0])}
    assert proximal_term(line, w0, 0.5).item() == pytest.approx(0.5 / 2 * (9 + 16 + 1))


def test_the_term_holds_clients_near_the_global_model(run, fedprox):
    def distance(mu):
        done = run(fedprox, {**ONE_KIND, "algorithm.mu": mu, "rounds": 1, "local_epochs": 3})
        before, after = done.servers
        return sum(float(F.mse_loss(after[n], before[n], reduction="sum")) for n in before)

    assert distance(5) < 0.5 * distance(0)


def test_its_hyper_parameters_are_checked_like_any(run, fedprox):
    with pytest.raises(UserError, match=r"algorithm\.mu: .*greater than or equal to 0"):
        run(fedprox, {**ONE_KIND, "algorithm.mu": -1})
    with pytest.raises(UserError, match=r"unknown key 'nu' in algorithm\. Valid: mu\."):
        run(fedprox, {**ONE_KIND, "algorithm.nu": 1})
