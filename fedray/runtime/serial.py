"""Run client steps in this process, without Ray."""

from __future__ import annotations

import torch

from fedray.core import Downlinks, Total
from fedray.evaluation.answers import Counts
from fedray.federation import Reply, Task
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import keep_freed_memory, peak_device_memory
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.shares import groups_of_step, groups_of_test
from fedray.storage.states import StateStore


class SerialExecutor:
    """Runs clients one after the other in this process (`federation.Executor`)."""

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        torch.set_num_threads(assembly.experiment.threads)
        keep_freed_memory()
        self._assembly = assembly
        self._runtime = GroupRunner(assembly, device)
        self.states = StateStore()

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run a step for every key of `down`; see `federation.Executor`."""
        at_once = task == "sum" or self._runtime.device.type != "cpu"
        groups = groups_of_step(self._assembly, name, down, at_once=at_once)
        clients = [client for group in groups for client in group]
        self.states.places()  # removes the states that no checkpoint needs any more
        states = map(self.states.get, clients)
        members = map(Member, clients, states, map(down.__getitem__, clients))
        answer = self._runtime.run_blocks(task, name, round_, [groups], members, self.states.write)
        replies, files, totals = answer
        for file in files:
            self.states.add(file)
        total = totals[0][0] if totals else Total()
        return dict(zip(clients, replies, strict=True)), total

    def test(self, name: str, round_: int, down: Downlinks) -> Counts:
        """Run a test for every key of `down`; see `federation.Executor`."""
        groups = groups_of_test(self._assembly, name, round_, down)
        firsts = (Member(g[0], self.states.get(g[0]), down[g[0]]) for g in groups)
        return self._runtime.test(name, round_, groups, firsts)

    @property
    def device_bytes(self) -> int:
        """Return the most memory that this process has used on its accelerator."""
        return peak_device_memory(self._runtime.device)

    def close(self) -> None:
        """Free the states."""
        self.states.close()
