"""The server's own step fails: one sentence, the last checkpoint, on after a cure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import small_runs
import torch
from rounds import rounds_in

from fedray.algorithms.averaging.scaffold import Scaffold
from fedray.base.errors import ClientError, ServerError
from fedray.core import Server, ServerState, Uplinks, algorithms
from fedray.laws.traces import serial
from fedray.runtime.resolve import from_tree
from fedray.runtime.session import Session
from fedray.storage.run import MEASURED_SECONDS
from fedray.storage.states import latest_round


def divide(state: Any) -> None:
    raise ArithmeticError("no such thing")


def leave(state: Any) -> None:
    sys.exit(0)


def spoil(state: Any) -> None:
    for tensor in state["model"].values():
        tensor.fill_(7)
    raise ArithmeticError("no such thing")


class Breaking(Scaffold):
    """SCAFFOLD whose server fails in round 4, as long as it is not cured."""

    name = "breaking"
    fault: ClassVar[Callable[[Any], None] | None] = None

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        if server.round == 4 and Breaking.fault is not None:
            Breaking.fault(state)
        return super().server_update(state, uplinks, server)


@pytest.fixture(autouse=True)
def knows(monkeypatch):
    algorithms.names()  # all are read: what is read later would be forgotten again
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add(Breaking)
    # A cure changes the code of a script's method, which a resume refuses.
    monkeypatch.setattr("fedray.base.fingerprint.fingerprint", lambda entry: "")


def run(out: Path, every: int) -> list[Any]:
    tree = {**small_runs.TREE, "rounds": 5, "participation": 0.5, "checkpoint_every": every}
    experiment = from_tree({**tree, "algorithm": {"name": "breaking"}}, ())
    return list(Session(experiment, out, serial).rounds())


def numbers(out: Path) -> list[Any]:
    rounds = rounds_in(out)
    return [{key: value for key, value in r.items() if key not in MEASURED_SECONDS} for r in rounds]


def checkpointed(out: Path) -> int | None:
    return latest_round(out / "states")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    algorithms.add(Breaking)
    try:
        out = tmp_path_factory.mktemp("undisturbed")
        run(out, 1)
        return numbers(out)
    finally:
        del algorithms._entries["breaking"]


@pytest.mark.parametrize(
    ("fault", "every", "cause"),
    [
        (divide, 1, "ArithmeticError: no such thing"),
        (spoil, 5, "ArithmeticError: no such thing"),
        (leave, 2, "SystemExit: 0"),
    ],
)
def test_it_stops_the_run_after_a_whole_round_and_goes_on_when_cured(
    undisturbed, tmp_path, monkeypatch, fault, every, cause
):
    monkeypatch.setattr(Breaking, "fault", staticmethod(fault))
    with pytest.raises(ServerError) as stopped:
        run(tmp_path, every)
    kept = tmp_path / "error.txt"
    named = f"server, round 4, step server_update: {cause}"
    assert str(stopped.value) == f"{named} (traceback in {kept})"
    assert "test_server_step.py" in kept.read_text()
    last = 3 - 3 % every
    assert checkpointed(tmp_path) == last
    assert len(numbers(tmp_path)) == 4
    monkeypatch.setattr(Breaking, "fault", None)
    assert [done.round for done in run(tmp_path, every)] == list(range(last + 1, 6))
    assert numbers(tmp_path) == undisturbed


def test_without_checkpoints_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(Breaking, "fault", staticmethod(divide))
    with pytest.raises(ServerError):
        run(tmp_path, 0)
    assert checkpointed(tmp_path) is None


def test_a_client_that_stops_a_run_leaves_its_checkpoint_too(undisturbed, tmp_path, monkeypatch):
    honest = Breaking.finish

    def finish(self: Any, local: Any, trained: Any) -> Any:
        if local.client.round == 4:
            raise ArithmeticError("no such thing")
        return honest(self, local, trained)

    with monkeypatch.context() as patch:
        patch.setattr(Breaking, "finish", finish)
        with pytest.raises(ClientError):
            run(tmp_path, 2)
    assert checkpointed(tmp_path) == 2
    run(tmp_path, 2)
    assert numbers(tmp_path) == undisturbed


def test_a_download_that_is_not_as_declared_is_the_server_s_fault(tmp_path, monkeypatch):
    def nan(state: Any) -> Any:
        return {**state, "model": {n: t * torch.nan for n, t in state["model"].items()}}

    honest = Breaking.server_update
    monkeypatch.setattr(
        Breaking, "server_update", lambda self, s, u, server: nan(honest(self, s, u, server))
    )
    with pytest.raises(ServerError, match=r"^server, round 2, step round: .*holds a NaN"):
        run(tmp_path, 1)
