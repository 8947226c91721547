"""Two laws of every method on an accelerator, on the pretended one.

A method gives the numbers of the CPU there, and moves no tensor to or from it between batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.config import Experiment
from fedray.core import Batch, Client, Downlinks, Total, training
from fedray.federation import Reply, Task
from fedray.laws.conformance import Subject, check_equal
from fedray.laws.traces import Violation, trace
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from tests.pretended_device import COUNTS, device

ROUNDING = 1e-4
"""Tolerance between devices, whose kernels round differently, over two rounds."""
FEW = 4
"""Batch size for counting batches; small, so that every client has several."""


def check_device(experiment: Experiment) -> None:
    """Compare runs on the CPU and on a pretended accelerator."""
    on_device = partial(SerialExecutor, device=device())
    with sdpa_kernel(SDPBackend.MATH):  # the only attention that both devices support
        check_equal(Subject(experiment), on_device, device=device(), tolerance=ROUNDING)


@dataclass
class StepCounts:
    """Counts on the pretended device; see `COUNTS`.

    Attributes:
        batches: batches that clients trained on, without the first of each epoch.
        inside: counts within these batches.
        steps: client steps.
        whole: counts within the steps, including their batches.
        last: those of the last round.
    """

    batches: int = 0
    inside: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    whole: Counter[str] = field(default_factory=Counter)
    last: Counter[str] = field(default_factory=Counter)


def count_steps(experiment: Experiment) -> StepCounts:
    """Run an experiment in small batches on the pretended device; count what client steps do."""
    experiment = from_tree(experiment.tree(), [("batch_size", FEW)])
    counts, batches = StepCounts(), training._batches

    def counted(client: Client, sizes: Sequence[int], repeat: int) -> Iterator[Batch]:
        before = Counter[str]()
        for number, batch in enumerate(batches(client, sizes, repeat)):
            yield batch
            if number // repeat % len(sizes):  # the first of an epoch may do one-off work
                counts.batches += 1
                counts.inside.update(COUNTS - before)
            before = Counter(COUNTS)

    @contextmanager
    def step(name: str, clients: int) -> Iterator[None]:
        before = Counter(COUNTS)
        yield
        if name == "client_update":
            counts.steps += clients
            counts.last = COUNTS - before
            counts.whole.update(counts.last)

    class Counting(SerialExecutor):
        def run(
            self, task: Task, name: str, round_: int, down: Downlinks
        ) -> tuple[dict[int, Reply], Total]:
            with step(name, len(down)):
                return super().run(task, name, round_, down)

    training._batches = counted
    try:
        with sdpa_kernel(SDPBackend.MATH):
            trace(Assembly(experiment), partial(Counting, device=device()), device())
    finally:
        training._batches = batches
    return counts


def check_batches(experiment: Experiment) -> None:
    """Check that no tensor moves to or from the accelerator while clients train on batches."""
    inside = count_steps(experiment).inside
    transfers = [f"{inside[n]} {n}" for n in ("copies", "synchronisations") if inside[n]]
    if transfers:
        raise Violation(
            f"{' and '.join(transfers)} in the batches of two rounds; create or move tensors "
            "before the batches, and do not read any on the CPU"
        )
