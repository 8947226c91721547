"""Runs of an experiment in this process, and the comparison of their numbers and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from fedray import core
from fedray.base.errors import FedrayError, one_line
from fedray.base.trees import Snapshot, leaves
from fedray.config.plugins import use
from fedray.core.sums import subtrees
from fedray.evaluation.answers import Counts
from fedray.federation import Executor, Federation, Reply, Task
from fedray.runtime.assembly import Assembly
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import Round

CPU = torch.device("cpu")


class Violation(FedrayError):
    """A broken law; the message is the first difference."""


@dataclass(frozen=True)
class Trace:
    """The numbers and states of one round.

    Attributes:
        round: its number.
        numbers: metrics, accuracies, sizes and absent clients, by name.
        tensors: the states of the server and all clients, by path.
    """

    round: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, done: Round, snapshot: Snapshot, clients: Mapping[int, core.ClientState]) -> Trace:
        """Copy a round's numbers and the states after the round."""
        numbers: dict[str, Any] = {f"metric {name}": value for name, value in done.metrics.items()}
        numbers |= {f"accuracy of client {c}": value for c, value in done.per_client.items()}
        numbers |= {"uploads": done.up, "downloads": done.down, "absent": list(done.absent)}
        tensors = _tensors(snapshot, clients)
        return cls(done.round, numbers, {n: tensor.cpu().clone() for n, tensor in tensors.items()})

    def differences(self, other: Trace, tolerance: float, *, shared: bool) -> Iterator[str]:
        """Describe each value that differs in another run of the same round.

        Args:
            other: the other run's trace.
            tolerance: relative and absolute; if not zero, only states are compared, because
                accuracies may change by whole images.
            shared: whether a number may be in one run only.
        """
        for name in sorted({*self.tensors, *other.tensors}):
            if not (name in self.tensors and name in other.tensors):
                yield f"{name} is in one run only"
                continue
            expected, actual = self.tensors[name], other.tensors[name]
            try:
                assert_close(expected, actual, rtol=tolerance, atol=tolerance)
            except AssertionError as error:
                yield f"{name}: {one_line(error)}"
        names, others = self.numbers.keys(), other.numbers.keys()
        for name in sorted(names & others if shared else names | others) if tolerance == 0 else ():
            value, other_value = self.numbers.get(name), other.numbers.get(name)
            if value != other_value and not (value != value and other_value != other_value):
                yield f"{name} is {value}, then {other_value}"


def _tensors(snapshot: Snapshot, clients: Mapping[int, core.ClientState]) -> Mapping[str, Tensor]:
    """Return the tensors of the server's and the clients' states by path."""
    tree = {"server": snapshot.server, **{f"client {c}": vars(one) for c, one in clients.items()}}
    return {"/".join(path): tensor for path, tensor in leaves(tree)}


def compare_traces(
    first: Sequence[Trace], second: Sequence[Trace], tolerance: float = 0.0, *, shared: bool = False
) -> None:
    """Compare two runs round by round; raise a `Violation` at the first difference."""
    for expected, actual in zip(first, second, strict=True):
        for difference in expected.differences(actual, tolerance, shared=shared):
            raise Violation(f"round {expected.round}: {difference}")


# --- runs ----------------------------------------------------------------------------------------

MakeExecutor: TypeAlias = Callable[[Assembly], Executor]


def trace(
    assembly: Assembly, make_executor: MakeExecutor, device: torch.device = CPU
) -> list[Trace]:
    """Run an experiment to its end, with the server on `device`; return the trace of each round.

    Raises:
        Violation: if a step changes the state before it in place.
    """
    use(assembly.experiment.plugins)
    a, executor = assembly, make_executor(assembly)
    federation = Federation(a.algorithm, executor, a.gate, a.plan, a.server(device))
    traces, states = list[Trace](), executor.states
    before: Mapping[str, Tensor] = {}
    for done in federation.rounds():
        for name, tensor in before.items():
            if not torch.equal(tensor.cpu(), traces[-1].tensors[name]):
                raise Violation(f"round {done.round} changed the state before it in place: {name}")
        clients = dict(states.items())
        before = _tensors(federation.snapshot, clients)
        traces.append(Trace.of(done, federation.snapshot, clients))
    executor.close()
    return traces


class OneByOne(SerialExecutor):
    """A serial executor that tests each client by itself."""

    def test(self, name: str, round_: int, down: core.Downlinks) -> Counts:
        """Test each client in a pass of its own."""
        test = super().test
        return np.concatenate([test(name, round_, {c: down[c]}) for c in sorted(down)])


class Reversed(SerialExecutor):
    """A serial executor that runs clients one by one, or stack by stack, in reverse order."""

    def run(
        self, task: Task, name: str, round_: int, down: core.Downlinks
    ) -> tuple[dict[int, Reply], core.Total]:
        """Run a step for every key of `down`, the last clients first."""
        run, sums = super().run, core.Sums(len(down))
        groups = [*subtrees(sorted(down), self._assembly.experiment.stacked)]
        done = [run(task, name, round_, {c: down[c] for c in group}) for group in groups[::-1]]
        for group, (_, total) in zip(groups, done[::-1], strict=True):
            sums.add(total, len(group))
        replies = {client: reply for answers, _ in done for client, reply in answers.items()}
        return dict(sorted(replies.items())), sums.total


serial = partial(SerialExecutor, device=CPU)
backwards = partial(Reversed, device=CPU)
