"""Kill a process that commits states, again and again: `python -m tests.faults.kill_states 5000`.

Each child goes on from the last commit and is killed at a random moment. Then the states are those
that an undisturbed process had after the round of the last commit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NoReturn

import torch

from fedray.base.trees import Snapshot
from fedray.core import ClientState
from fedray.storage.states import Commit, Pin, StateStore

CLIENTS, COHORT = 30, 10


def state(steps: int, numbers: int = 300) -> ClientState:
    """Return the state of a client after so many steps."""
    model = {"w": torch.full((numbers,), float(steps)), "b": torch.arange(7) + steps}
    return ClientState(model, {"steps": torch.tensor(steps)})


def participants(round_: int) -> list[int]:
    """Return the clients of a round; those of round 0 are all."""
    everyone = range(CLIENTS)
    return [*everyone] if round_ == 0 else random.Random(round_).sample(everyone, COHORT)


def commit_for_ever(folder: Path) -> NoReturn:
    """Commit rounds; two workers write the states, and every third round's models are kept."""
    store = StateStore(folder)
    found = store.load()
    store.tidy()
    round_ = -1 if found is None else found.snapshot.round
    while True:
        round_ += 1
        clients, _ = participants(round_), store.places()
        new = {c: state(int(store[c].memory["steps"]) + 1 if c in store else 1) for c in clients}
        for share in (clients[::2], clients[1::2]):
            store.put({client: new[client] for client in share})
        download = store.write({-2: {"w": torch.full((3,), float(round_))}})
        pin = Pin("best", {"round": round_}, [download]) if round_ % 3 == 0 else None
        store.commit(Snapshot(round_, {"round": torch.tensor(round_)}), {"identity": "i"}, pin)


def check(folder: Path, last: int, steps: Counter[int]) -> int:
    """Compare the last commit with undisturbed states; return its round.

    Args:
        folder: the folder of states.
        last: the round of the commit before the last kill.
        steps: the steps of each client up to round `last`, brought up to date here.
    """
    found, best = StateStore(folder).load(), Commit.read(folder, "best")
    round_ = -1 if found is None else found.snapshot.round
    assert round_ >= last, "a commit is lost"
    for number in range(last + 1, round_ + 1):
        steps.update(participants(number))
    if found is not None:
        assert int(found.snapshot.server["round"]) == round_
        assert sorted(found.clients) == sorted(steps)
        for client, after in found.clients.items():
            expected = state(steps[client])
            for of, wanted in ((after.model, expected.model), (after.memory, expected.memory)):
                assert all(torch.equal(of[name], tensor) for name, tensor in wanted.items())
    if best is not None:
        kept = best.facts["round"]
        assert round_ - 3 < kept <= round_ + 1
        assert best.find(-2) is not None
        assert int(best.find(-2)["w"][0]) == kept
        assert {key for file in best.files.values() for key in file.keys if key >= 0} == {*steps}
    return round_


def kill(folder: Path, kills: int, seed: int = 0, most: float = 0.1) -> int:
    """Kill so many children, each within `most` seconds; return the round of the last commit."""
    at, last, steps = random.Random(seed), -1, Counter[int]()
    for _ in range(kills):
        if (child := os.fork()) == 0:
            try:
                commit_for_ever(folder)
            finally:
                os._exit(1)
        time.sleep(at.uniform(0, most))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the child ended by itself"
        last = check(folder, last, steps)
    return last


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        began = time.time()
        rounds = kill(Path(name) / "states", int(sys.argv[1]), int([*sys.argv, "0"][2]))
        print(f"{sys.argv[1]} kills in {time.time() - began:.0f} s, {rounds} rounds, 0 wrong")
