"""One round passes at most thirteen functions in six files to the gradient, and twelve back.

Down: what is on the stack at the round's last `backward`, from the session's loop. Back: what then,
up to the line in rounds.jsonl, returns the trained weights, an upload, a reply, a sum, the server's
state or the round, or is on the stack when an upload is added up or the line is written. A function
counts once; what looks, counts or stores on the way does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
import ray
import torch

import fedray
from fedray.base.trees import Snapshot
from fedray.core import ClientState, Payload, Total, Trained
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.ray_executor import RayExecutor, Worker
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.storage.run import Round

PACKAGE = f"{Path(fedray.__file__).parent}/"
CARRIED = (Trained, Payload, ClientState, Reply, Total, Snapshot, Round, bytes)
WRITER = "storage/run_folder.py"
SMALL = {
    "rounds": 2,
    "eval_every": 0,
    "local_epochs": 1,
    "data": {"source": "digits", "clients": 3, "samples": 60},
    "model": {"group": "cnn3", "feature_dim": 16},
    "report": {"select": "test"},
    "algorithm": "fedavg",
}


def is_carried(value: Any, depth: int = 3) -> bool:
    if isinstance(value, CARRIED) or (isinstance(value, str) and value.startswith("{")):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return (
        isinstance(value, tuple | list | dict)
        and depth > 0
        and any(is_carried(part, depth - 1) for part in parts)
    )


class Hops:
    """Profiles one round: `down` and `back` are its functions as "file: function"."""

    def __init__(self) -> None:
        self.down: list[CodeType] = []
        self.back: list[CodeType] = []
        self._began = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "backward" and "/torch/" in code.co_filename:
            self.down, self.back = self._stack(frame), []
        elif event == "return" and self.down and self._is_ours(code):
            is_server_step = code.co_name in ("server_update", "server_step")
            if is_carried(value) or (value is not None and is_server_step):
                self.back.append(code)
        elif event == "c_call" and value.__name__ == "write" and code.co_filename.endswith(WRITER):
            self.back += self._stack(frame)
            sys.setprofile(None)

    @staticmethod
    def _is_ours(code: CodeType) -> bool:
        return code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")

    def _stack(self, frame: FrameType | None) -> list[CodeType]:
        codes = list[CodeType]()
        while frame is not None and frame.f_code.co_qualname != "Session.rounds":
            codes += [frame.f_code] if self._is_ours(frame.f_code) else []
            frame = frame.f_back
        return codes[::-1]

    def lists(self) -> tuple[list[str], list[str]]:
        """Return both ways; those on the way down do not count again on the way back."""
        back = [code for code in dict.fromkeys(self.back) if code not in self.down]
        return [*map(self._named, dict.fromkeys(self.down))], [*map(self._named, back)]

    @staticmethod
    def _named(code: CodeType) -> str:
        return f"{code.co_filename.removeprefix(PACKAGE)}: {code.co_qualname}"


class Pool:
    """Stands in for the workers: their methods run in this process."""

    def __init__(self) -> None:
        self._worker = Worker(threads=1, gpus=0)
        self.workers = [self]

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._worker, name))

    def ready(self) -> list[Any]:
        return self.workers

    def answer(self, value: Any) -> Any:
        return value


def serial(assembly: Assembly) -> SerialExecutor:
    return SerialExecutor(assembly, torch.device("cpu"))


@pytest.fixture
def on_ray(monkeypatch):
    """Return a maker of Ray executors whose worker is in this process."""
    monkeypatch.setattr(ray, "get", lambda value: value)
    monkeypatch.setattr(ray, "put", lambda value: value)
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return lambda assembly: RayExecutor(assembly, Pool())


def hops_of(make: Any, out: Path) -> tuple[list[str], list[str]]:
    rounds = Session(from_tree(SMALL, []), out, make).rounds()
    next(rounds)
    hops = Hops()
    sys.setprofile(hops)
    try:
        next(rounds)
    finally:
        sys.setprofile(None)
    rounds.close()
    return hops.lists()


def report(where: str, down: list[str], back: list[str]) -> Iterator[str]:
    for way, functions in (("down", down), ("back", back)):
        files = {function.partition(":")[0] for function in functions}
        yield f"{where}, {way}: {len(functions)} functions in {len(files)} files"
        yield from (f"  {function}" for function in functions)


@pytest.mark.parametrize("where", ["serial", "ray"])
def test_one_round_has_few_hops(where, tmp_path, request):
    make = request.getfixturevalue("on_ray") if where == "ray" else serial
    down, back = hops_of(make, tmp_path)
    print("\n".join(report(where, down, back)))
    assert down[0].endswith("Session._run")
    assert down[-1].endswith(": fit")
    assert len(down) <= 13
    assert len({function.partition(":")[0] for function in down}) <= 6
    assert len(back) <= 12
