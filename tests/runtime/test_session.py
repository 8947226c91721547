"""A run and its folder: what is checked, kept and carried over when it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedray.errors import UserError
from fedray.files import write_json
from fedray.records import Costs, RunFolder, RunWriter
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session, metrics_of

QUICK = ["rounds=3", "local_epochs=1", "data.clients=3", "data.samples=300"]


def session(out: Path, *assignments: str) -> Session:
    experiment = resolve("local_digits", [*QUICK, *assignments])
    return Session(experiment, out, lambda a: SerialExecutor(a, torch.device("cpu")))


def interrupted(out: Path, *assignments: str) -> RunFolder:
    """The folder of a run that was stopped after round 1."""
    rounds = session(out, *assignments).rounds()
    assert [next(rounds).round, next(rounds).round] == [0, 1]
    rounds.close()
    return RunFolder(out)


def rewritten(folder: RunFolder, **info: Any) -> None:
    """Write other facts into a result, with the checksum that belongs to them."""
    run = folder.read()
    write_json(folder.result, replace(run, info=replace(run.info, **info)).to_json())


@pytest.mark.parametrize("every", [0, 1])
def test_other_data_than_the_run_began_with_is_refused(tmp_path, every):
    keys = (f"checkpoint_every={every}",)
    folder = interrupted(tmp_path, *keys)
    rewritten(folder, data_sha256="f" * 64)
    with pytest.raises(UserError, match=r"images or labels are not those .* began .*ffffffffffff"):
        session(tmp_path, *keys)


def test_costs_go_on_where_the_run_stopped(tmp_path):
    folder = interrupted(tmp_path)
    before = replace(folder.read(), costs=Costs(1000.0, 77.0, 2**50))
    RunWriter(folder, before.info, before).close()
    assert [done.round for done in session(tmp_path).rounds()] == [2, 3]
    costs = folder.read().costs
    assert 1000 < costs.wall_seconds < 1500
    assert (costs.startup_seconds, costs.peak_rss_bytes) == (77.0, 2**50)


def test_tracebacks_stay_with_a_resumed_run_and_not_with_one_that_starts_anew(tmp_path):
    folder = interrupted(tmp_path / "resumed")
    folder.append_error("Traceback of what stopped it")
    list(session(tmp_path / "resumed").rounds())
    assert folder.error.read_text() == "Traceback of what stopped it\n"
    folder = RunFolder(tmp_path / "new")
    folder.append_error("Traceback of what came before the first round")
    list(session(tmp_path / "new").rounds())
    assert not folder.error.exists()


def test_a_checkpoint_has_only_the_clients_that_stepped_since_the_last(tmp_path):
    done = list(session(tmp_path, "participation=0.34").rounds())
    stepped = {client: r.round for r in done for client in r.participants}
    assert len(set(stepped.values())) > 1
    found = (tmp_path / "checkpoints" / "round_00003").glob("clients-*")
    assert {path.stem for path in found} == {f"clients-{r:05d}" for r in stepped.values()}


def test_the_numbers_of_a_methods_analysis_are_declared(assemble):
    method = assemble("fedtsp").algorithm
    names = [metric.name for metric in metrics_of(method)]
    assert "local_accuracy" in names
    assert {metric.name for metric in method.analysis_metrics} <= set(names)
    assert len(names) == len(set(names))
