"""Run client steps in this process, without Ray."""

from __future__ import annotations

import torch

from fedray.config import Experiment, flatten
from fedray.core import ClientState, Downlinks, Sums, Total
from fedray.evaluation.answers import Counts
from fedray.federation import Reply, Task
from fedray.flat import tensor_blocks
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.memory import keep_freed_memory, peak_device_memory, return_freed_memory
from fedray.runtime.shares import groups_of_step, groups_of_test
from fedray.storage.states import StateStore

CLUSTER_KEYS = (
    "workers",
    "cpus",
    "faults.max_failures",
    "faults.start_timeout_s",
)
"""Keys that have no effect in one process."""
MEMORY = 512 * 2**20
"""Bytes of new states after which they are written to a file before the exchange is over."""


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
        self._runtime = GroupRunner(assembly, device)
        self.states = StateStore()

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run a step for every key of `down`; see `federation.Executor`."""
        replies, sums = dict[int, Reply](), Sums(len(down)) if task == "sum" else None
        new, size = dict[int, ClientState](), 0
        at_once = task == "sum" or self._runtime.device.type != "cpu"
        for group in groups_of_step(self._assembly, name, down, at_once=at_once):
            members = [Member(client, self.states.get(client), down[client]) for client in group]
            stepped = self._runtime.run_group(name, round_, members, sums)
            for member, (reply, state) in zip(members, stepped, strict=True):
                replies[member.client] = reply
                if state is not None and state is not member.state:
                    new[member.client] = state
                    size += sum(block.nbytes for block in tensor_blocks(vars(state)))
            if size > MEMORY:
                self.states.put(new)
                new, size = {}, 0
        self.states.put(new)
        return replies, Total() if sums is None else sums.total

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
        """Free the states and the memory that malloc has kept."""
        self.states.close()
        return_freed_memory()
