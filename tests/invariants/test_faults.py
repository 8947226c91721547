"""Faults by scenario, and real ones: what the server sees, what is kept, what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import numbers, on_workers, serially, tensors

from fedray.base.errors import ClientError, RunFailed, UserError
from fedray.federation import Federation
from fedray.runtime.session import Session

SHARING = ["lg_fedavg", "fedgh", "fedgen", "feddistill"]
METHODS = ["local", "fedavg", "fedproto", "fedtgp", "alignfed", "fedtsp", "fedkd", *SHARING]


# --- by scenario: absent --------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_when_everybody_is_absent_nothing_changes(small, tmp_path, method):
    everybody = (f"algorithm={method}", "model.group=mlp", "rounds=2", "faults.drop=1.0")
    rounds = Session(small.experiment(*everybody), tmp_path, small.serial).rounds()
    first = next(rounds)
    before = tensors(tmp_path)
    one, two = rounds
    after = tensors(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for record in (one, two):
        assert record.per_client == first.per_client
        assert record.up.total_bytes == 0
        assert len(record.absent) == 6


@pytest.mark.parametrize("method", ["fedavg", "fedtsp"])
def test_dropped_is_as_if_absent(small, tmp_path, monkeypatch, method):
    variant = (f"algorithm={method}", "model.group=mlp", "rounds=4")
    serially(small.experiment(*variant, "faults.drop=0.4"), tmp_path / "dropped")
    with_drops = numbers(tmp_path / "dropped")["rounds"]
    present = [sorted({*record["participants"]} - {*record["absent"]}) for record in with_drops]
    assert any(0 < len(clients) < 6 for clients in present[1:])

    monkeypatch.setattr(Federation, "_cohort", lambda self, round_: present[round_])
    serially(small.experiment(*variant), tmp_path / "absent")
    without = numbers(tmp_path / "absent")["rounds"]
    assert [r["metrics"] for r in with_drops] == [r["metrics"] for r in without]
    assert [r["up"]["bytes"] for r in with_drops] == [r["up"]["bytes"] for r in without]
    one, other = tensors(tmp_path / "dropped"), tensors(tmp_path / "absent")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_clients_drop_out_as_often_as_they_should(small, tmp_path):
    often = ("algorithm=local", "model.group=mlp", "rounds=30", "eval_every=0", "faults.drop=0.3")
    serially(small.experiment(*often), tmp_path)
    absent = sum(len(record["absent"]) for record in numbers(tmp_path)["rounds"])
    asked = 30 * 6
    assert absent == pytest.approx(0.3 * asked, abs=4 * (0.21 * asked) ** 0.5)


def test_what_precedes_the_first_round_is_spared(small):
    first = numbers(small.undisturbed("faults.drop=0.9", "rounds=1"))["rounds"][0]
    assert first["absent"] == []
    assert sum(first["up"]["bytes"].values()) > 0


# --- for real -------------------------------------------------------------------------------------

NAMED = "client 1, round 2, step client_update: ArithmeticError: no such thing"


def assert_names_its_traceback(error: ClientError, out: Path) -> None:
    """One line names client, round, step, cause and the file with the traceback."""
    assert str(error) == f"{NAMED} (traceback in {out / 'error.txt'})"
    text = (out / "error.txt").read_text()
    assert "faulty.py" in text
    assert 'raise ArithmeticError("no such thing")' in text


def test_an_error_in_a_client_stops_the_run_and_names_it(small, tmp_path, faulty_methods):
    with pytest.raises(ClientError) as stopped:
        serially(small.experiment("algorithm=broken"), tmp_path)
    assert_names_its_traceback(stopped.value, tmp_path)


def test_an_error_in_a_client_s_test_is_named_too(small, tmp_path, faulty_methods):
    with pytest.raises(ClientError, match=r"^client 1, round 2, step evaluate: ArithmeticError"):
        serially(small.experiment("algorithm=broken_test", "rounds=2"), tmp_path)


@pytest.mark.ray
def test_errors_on_workers_read_as_in_one_process(small, pool, tmp_path, faulty_methods):
    with pytest.raises(ClientError) as stopped:
        on_workers(small.experiment("algorithm=broken"), tmp_path / "a", pool, 2)
    assert_names_its_traceback(stopped.value, tmp_path / "a")
    with pytest.raises(ClientError, match=r"^client 1, round 2, step evaluate: Arithmetic"):
        on_workers(small.experiment("algorithm=broken_test"), tmp_path / "b", pool, 2)
    with pytest.raises(UserError) as refused:
        on_workers(small.experiment("algorithm=mendable"), tmp_path / "c", pool, 2)
    assert str(refused.value) == "this.key=1 is too small; set this.key=2"


def test_a_full_disk_is_no_error_of_a_client(small, tmp_path, faulty_methods):
    experiment = small.experiment("algorithm=full_disk")
    with pytest.raises(RunFailed, match=r"^/scratch/file cannot be written .* --resume"):
        serially(experiment, tmp_path)
    assert [record["round"] for record in numbers(tmp_path)["rounds"]] == [0, 1]
