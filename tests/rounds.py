"""Runs in this process, and the rounds that a run has written, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensors import CPU

from fedray.config import Experiment
from fedray.core import ClientState, Payload
from fedray.federation import Reply
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder


def serial(experiment: Experiment, out: Path) -> Session:
    """Return a run of an experiment in this process."""
    return Session(experiment, out, lambda assembly: SerialExecutor(assembly, CPU))


def rounds_in(out: Path) -> list[dict[str, Any]]:
    """Return the rounds in a run's rounds.jsonl, without costs."""
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "costs"} for line in lines if "round" in line]


def result_in(out: Path) -> dict[str, Any]:
    """Return a run's run.json, with its rounds and what follows from them."""
    run = RunFolder(out).read()
    chosen = {"best": run.best, "final": run.final}
    return {
        **json.loads((out / "run.json").read_text()),
        "partition_sha256": run.info.partition_sha256,
        "data_sha256": run.info.data_sha256,
        "rounds": rounds_in(out),
        "costs": asdict(run.costs),
        **{
            name: done and {"round": done.round, "local_accuracy": done.local_accuracy}
            for name, done in chosen.items()
        },
    }


def step_of(
    runtime: GroupRunner,
    client: int = 0,
    state: ClientState | None = None,
    down: Payload | None = None,
    *,
    name: str = "client_update",
    round_: int = 1,
) -> tuple[Reply, ClientState | None]:
    """Run one client's step; return its reply and next state."""
    return runtime.run_group(name, round_, [Member(client, state, down)])[0]
