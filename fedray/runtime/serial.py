"""Run client steps in this process, without Ray."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedray.config import Experiment, flatten
from fedray.core import ClientState, Downlinks, Payload, StateTree, Total, total_over
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import Member
from fedray.runtime.memory import keep_freed_memory
from fedray.runtime.shares import groups_of_step, groups_of_test, is_stacked
from fedray.runtime.stacked import client_runtime
from fedray.states import StateStore

CLUSTER_KEYS = (
    "workers",
    "cpus",
    "server_cpus",
    "faults.max_failures",
    "faults.start_timeout_s",
)
"""Keys that have no effect in one process."""


def unused_keys(experiment: Experiment) -> str:
    """Return one line about keys that are set but have no effect in one process; "" if none."""
    current, default = flatten(experiment.tree()), flatten(Experiment().tree())
    changed = [f"{key}={current[key]:g}" for key in CLUSTER_KEYS if current[key] != default[key]]
    return f"without effect in one process: {', '.join(changed)}" if changed else ""


class SerialExecutor:
    """Runs clients one after the other in this process (`federation.Executor`)."""

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        torch.set_num_threads(assembly.experiment.threads)
        keep_freed_memory()
        self._assembly = assembly
        self._runtime = client_runtime(assembly, device)
        self.states = StateStore()

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`."""
        return dict(self._steps(name, round_, down))

    def total(self, name: str, round_: int, down: Downlinks) -> tuple[dict[int, Reply], Total]:
        """Run one client step for every key of `down`, and sum the uploads."""
        replies: dict[int, Reply] = {}
        steps = self._steps(name, round_, down, is_summed=True)

        def summand(_: int) -> StateTree | None:
            client, reply = next(steps)
            replies[client], summand = self._runtime.summed(reply)
            return summand

        return replies, total_over(list(down), summand, in_place=True)

    def test(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run a test for every key of `down`."""
        replies: dict[int, Reply] = {}
        for group in groups_of_test(self._assembly, name, round_, down):
            state, sent = self.states.get(group[0]), down[group[0]]
            tested = self._runtime.test_together(name, round_, group, state, sent)
            replies |= zip(group, tested, strict=True)
        return dict(sorted(replies.items()))

    def close(self) -> None:
        """Free the states."""
        self.states.close()

    def _steps(
        self, name: str, round_: int, down: Downlinks, *, is_summed: bool = False
    ) -> Iterator[tuple[int, Reply]]:
        """Run one client step for every key of `down`; yield each client with its reply."""
        for group in groups_of_step(self._assembly, name, down):
            if not is_stacked(self._assembly, name):
                (client,) = group
                yield client, self._step(name, round_, client, down[client], is_summed=is_summed)
                continue
            members = [Member(client, self.states.get(client), down[client]) for client in group]
            results = self._runtime.step_together(name, round_, members, is_summed=is_summed)
            for member, (reply, after) in zip(members, results, strict=True):
                self._put(member.client, member.state, after)
                yield member.client, reply

    def _step(
        self, name: str, round_: int, client: int, down: Payload | None, *, is_summed: bool = False
    ) -> Reply:
        before = self.states.get(client)
        reply, after = self._runtime.step(name, round_, client, before, down, is_summed=is_summed)
        self._put(client, before, after)
        return reply

    def _put(self, client: int, before: ClientState | None, after: ClientState | None) -> None:
        if after is not None and after is not before:
            self.states.put(client, after)
