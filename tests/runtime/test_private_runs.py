"""Privacy of whole runs: what is refused, counted, stated, and exempt."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rounds import serial

from fedray.base.errors import UserError
from fedray.core import Payload, algorithms, takes_equal_mean
from fedray.core.gate import Gate
from fedray.evaluation.accountant import gaussian_epsilon
from fedray.runtime.privacy import privacy_lines
from fedray.runtime.resolve import from_tree
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder

CPU = torch.device("cpu")
SMALL: Mapping[str, Any] = {
    "algorithm": {"name": "fedavg", "weights": "uniform"},
    "rounds": 2,
    "local_epochs": 1,
    "eval_every": 0,
    "data": {"samples": 240, "clients": 4},
    "model": {"group": "mlp", "feature_dim": 16},
}
CENTRAL = {"privacy.mode": "central", "privacy.clip_norm": 1.0, "privacy.noise_multiplier": 2.0}
LOCAL = {**CENTRAL, "privacy.mode": "local"}


def session(out: Path, **changes: Any) -> Session:
    return serial(from_tree(dict(SMALL), changes.items()), out)


def finished(out: Path, **changes: Any) -> RunFolder:
    for _ in session(out, **changes).rounds():
        pass
    return RunFolder(out)


def epsilons(folder: RunFolder) -> list[float]:
    return [done.metrics["epsilon"] for done in folder.read().rounds]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        *(
            (keys, r"does not take such a mean; set algorithm\.weights=.* or privacy\.mode=local")
            for keys in (
                {"algorithm.weights": "samples"},
                {"algorithm": {"name": "fednova"}},
                {"algorithm": {"name": "fedproto"}},
            )
        ),
        ({"wire.up_bits": 8}, r"wire\.up_bits=8, which changes updates after clipping"),
        ({"algorithm": {"name": "local"}}, r"covers uploads, but algorithm=local declares none"),
    ],
)
def test_what_central_privacy_cannot_state(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        from_tree(dict(SMALL), {**CENTRAL, **changes}.items())


def test_images_in_the_clear_leave_nothing_to_state():
    changes = {**LOCAL, "algorithm": {"name": "dp2fl"}}
    with pytest.raises(UserError, match=r"dp2fl uploads clients' images \(DP2FL\..*up\.images"):
        from_tree(dict(SMALL), changes.items())


def test_without_the_accountant_nothing_begins(monkeypatch):
    monkeypatch.setattr("fedray.runtime.privacy.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'not installed; pip install "fedray\[privacy\]"'):
        from_tree(dict(SMALL), CENTRAL.items())


def test_the_methods_whose_server_takes_a_mean_with_equal_weights():
    """It follows from what they declare, and from whether the server sees single uploads."""
    equal = {
        method.name
        for method in algorithms.entries()
        if "weights" in method.model_fields and takes_equal_mean(method(weights="uniform"))
    }
    assert {"fedavg", "fedprox", "scaffold", "pfedme", "fedetf", "promptfl", "fedglcl"} <= equal
    others = {"fednova", "fedconcat", "fedpac", "fedproto_global", "fedtsp_global", "feddf"}
    assert not equal & others
    assert not takes_equal_mean(algorithms.get("fedavg")())


# --- what is done --------------------------------------------------------------------------------


def test_a_bound_that_nothing_reaches_changes_nothing(run):
    """Local: bit for bit. Central: the mean is taken once before the method takes it."""
    wide = {"privacy.clip_norm": 1e6}
    same = {"model.group": "mlp", "algorithm.weights": "uniform"}
    plain = run("fedavg", same).servers[-1]["model"]
    local = run("fedavg", {**same, **wide, "privacy.mode": "local"}).servers[-1]["model"]
    central = run("fedavg", {**same, **wide, "privacy.mode": "central"}).servers[-1]["model"]
    for name, tensor in plain.items():
        assert torch.equal(local[name], tensor)
        torch.testing.assert_close(central[name], tensor)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedprox"])
def test_the_model_moves_by_at_most_s_in_a_round(run, method):
    changes = {
        "model.group": "mlp",
        "rounds": 3,
        "participation": 0.5,
        "algorithm.weights": "uniform",
        "privacy.mode": "central",
        "privacy.clip_norm": 0.05,
    }
    servers = [server["model"] for server in run(method, changes).servers]
    for before, after in pairwise(servers):
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
        assert 0.001 < float(moved.norm()) <= 0.05 * (1 + 1e-4)


def test_epsilon_is_in_every_round_and_stated(tmp_path):
    run = finished(tmp_path / "run", **CENTRAL).read()
    expected = [gaussian_epsilon(2.0, times, 1e-5) for times in range(3)]
    assert [done.metrics["epsilon"] for done in run.rounds] == expected  # everybody takes part
    assert [done.metrics["epsilon_round"] for done in run.rounds] == [0, expected[1], expected[1]]
    metric = run.info.metric("epsilon")
    assert (metric.unit, metric.direction, metric.on) == ("number", "min", None)
    said = "\n".join(privacy_lines(run))
    for words in ("central", "at delta 1e-05", "FedAvg.up.samples (statistics)"):
        assert words in said


def test_no_noise_is_called_no_protection(tmp_path):
    silent = {"privacy.mode": "local", "privacy.clip_norm": 1.0}
    clipped = finished(tmp_path / "clipped", **silent).read()
    assert "gives no protection and no epsilon" in privacy_lines(clipped)[0]
    assert not any(name.startswith("epsilon") for name in clipped.rounds[-1].metrics)


def test_without_privacy_nothing_is_counted(tmp_path):
    folder = finished(tmp_path / "run")
    assert privacy_lines(folder.read()) == []
    assert "epsilon" not in folder.read().rounds[-1].metrics


# --- stopping and going on -----------------------------------------------------------------------


def stopped_after_round_1(out: Path, **changes: Any) -> None:
    """Round 2 has been asked for, and neither it nor its checkpoint was written."""
    running = session(out, **changes)
    rounds = running.rounds()
    next(rounds), next(rounds)
    vars(running._federation.algorithm)["server_step"] = _dies
    with pytest.raises(Exception, match="the server died"):
        next(rounds)


def _dies(*_: Any) -> None:
    raise RuntimeError("the server died")


def test_a_resumed_run_ends_as_the_undisturbed_one(tmp_path):
    stopped_after_round_1(tmp_path / "resumed", **LOCAL)
    resumed, whole = (finished(tmp_path / name, **LOCAL) for name in ("resumed", "whole"))
    assert epsilons(whole) == [gaussian_epsilon(2.0, times, 1e-5) for times in (0, 1, 2)]
    for mine, other in zip(resumed.read().rounds, whole.read().rounds, strict=True):
        assert mine.metrics == other.metrics


# --- what travels is declared --------------------------------------------------------------------

STEPS = {
    "fedconcat": {"rounds": 3, "algorithm.clusters": 2, "algorithm.cluster_rounds": 1},
    "fedtsp": {"algorithm.server_epochs": 1},
    "fedtgp": {"algorithm.server_epochs": 1},
    "alignfed": {"algorithm.target_steps": 1},
    "fedgh": {"algorithm.server_epochs": 1},
    "fedgen": {"algorithm.server_epochs": 1},
    "fedtsp_global": {"algorithm.server_epochs": 1},
    "fedfa_augmentation": {"model.group": "cnn2"},
    "dp2fl": {"data.validation_fraction": 0.2},
}


@pytest.mark.parametrize("method", [method.name for method in algorithms.entries()])
def test_a_method_declares_every_payload_that_it_sends(run, tiny_bert, monkeypatch, method):
    """What is exempt, and the page on privacy, are read off these declarations."""
    passed: dict[str, set[str]] = {"uploads": set(), "downloads": set()}
    down, up = Gate.down, Gate.up

    def watch_down(self: Gate, payload: Payload) -> Any:
        passed["downloads"].add(payload.fields.place)
        return down(self, payload)

    def watch_up(self: Gate, payload: Payload, call: Any) -> Any:
        passed["uploads"].add(payload.fields.place)
        return up(self, payload, call)

    monkeypatch.setattr(Gate, "down", watch_down)
    monkeypatch.setattr(Gate, "up", watch_up)
    declared = algorithms.get(method)
    model = {} if declared.requires.prompts else {"model.group": "mlp"}
    if method == "fedglcl_l":  # with a text encoder that learns
        bert = {"name": "bert", "path": str(tiny_bert)}
        model |= {"algorithm.blocks": 1, "text.encoder": bert, "model.feature_dim": 16}
    run(method, {"rounds": 1, **model, **STEPS.get(method, {})})
    expected = {"uploads": declared.uploads, "downloads": declared.downloads}
    assert passed == {way: {each.place for each in of} for way, of in expected.items()}


def test_a_payload_says_what_it_reveals():
    for method in algorithms.entries():
        for fields in (*method.uploads, *method.downloads):
            assert fields.reveals(), f"{fields.place} lacks `reveals`"
