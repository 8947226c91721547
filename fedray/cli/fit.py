"""`fedray fit EXPERIMENT [key=value ...]`: measure which settings make its rounds fastest here."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import click

from fedray.activity import say_next
from fedray.command import Command, KnownName, keys, plugins
from fedray.errors import FedrayError, UserError, one_line
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections
from fedray.shipped import names
from fedray.units import size_of

if TYPE_CHECKING:
    from fedray.config import Experiment

WORKERS = (1, 2, 4, 8)
"""Numbers of workers that are tried, as far as there are CPUs and clients."""
STACKED = 20
FLOAT32_IF_STACKED = ("precision", "model.clip_precision")
"""Keys of bfloat16 that stacked clients do not support."""
ROUNDS, LONGEST = 3, 20.0
"""Most timed rounds of a setting, and the seconds after which no further one begins."""
NUMERICS = (
    "stacked and precision belong to an experiment's numbers: set them for all runs you compare"
)


@dataclass(frozen=True)
class Measurement:
    """The cost of a round under some settings.

    Attributes:
        settings: the changed keys; without `workers`, the clients run in one process.
        seconds: median over the timed rounds, tests included.
        memory: bytes of all processes of the run after the last round.
        device_memory: bytes in use on the first GPU; None without one.
        failure: why the settings are impossible; "" if they were measured.
    """

    settings: Mapping[str, Any]
    seconds: float = float("inf")
    memory: int = 0
    device_memory: int | None = None
    failure: str = ""

    @property
    def words(self) -> list[str]:
        """The settings as words of `fedray run`."""
        words = [f"{key}={value}" for key, value in self.settings.items()]
        return words if "workers" in self.settings else [*words, "--executor", "serial"]


@click.command(cls=Command)
@click.argument("experiment", type=KnownName(lambda: names("experiments")))
@keys
@plugins
def command(experiment: str, keys: Sequence[str], plugin: Sequence[str]) -> None:
    """Measure a few rounds with other numbers of workers, stacked clients and bfloat16.

    EXPERIMENT is a shipped name or a YAML file. Each setting trains one round to warm up and
    up to three that are timed; no run is kept. Ray starts on this machine, or RAY_ADDRESS names
    a cluster. The fastest settings come first; workers=auto then is the fastest number.
    """
    say_next("importing PyTorch")
    from fedray.runtime.fitted import remember
    from fedray.runtime.inputs import check_inputs
    from fedray.runtime.resolve import resolve

    def with_settings(settings: Mapping[str, Any]) -> Experiment:
        set_here = {"workers": 1, **settings}  # the file may say auto
        return resolve(experiment, [*keys, *(f"{k}={v}" for k, v in set_here.items())], plugin)

    check_inputs(with_settings({}))

    found = []
    for measured in measure_all(with_settings):
        print(_progress(measured), flush=True)
        found.append(measured)
    found.sort(key=lambda measured: measured.seconds)
    found = [measured for measured in found if not measured.failure]
    print_sections([_section(found)])
    words = [*keys, *found[0].words]
    print(f"fastest here: fedray run {shlex.join([experiment, *words])}\n{NUMERICS}")
    workers = [each.settings["workers"] for each in found if [*each.settings] == ["workers"]]
    if workers:
        remember(with_settings({}), workers[0])
        print(f"workers=auto means workers={workers[0]} from now on, for rounds like these")


def measure_all(with_settings: Callable[[Mapping[str, Any]], Experiment]) -> Iterator[Measurement]:
    """Measure every setting that the experiment and the machine allow.

    Args:
        with_settings: returns the experiment with changed keys.

    Raises:
        UserError: if none of them can run.
    """
    import ray

    from fedray.runtime.cluster import connect

    nodes = connect()
    cpus = int(sum(node.get("CPU", 0) for node in nodes))
    has_measured, cause = False, ""
    try:
        for settings in candidates(with_settings({}), cpus):
            measured = measure_settings(settings, with_settings)
            has_measured, cause = has_measured or not measured.failure, cause or measured.failure
            yield measured
    finally:
        ray.shutdown()
    if not has_measured:
        raise UserError(cause)


def candidates(experiment: Experiment, cpus: int) -> Iterator[dict[str, Any]]:
    """Yield the settings to try: executor and workers, stacked clients, precisions."""
    import torch

    from fedray.core import algorithms
    from fedray.core.stacked import refusal
    from fedray.runtime.devices import accelerator, emulates_bfloat16

    clients = max(1, round(experiment.participation * experiment.data.clients))
    method = algorithms.get(experiment.algorithm.name)
    can_stack = clients > 1 and not refusal(method)
    device = torch.device(accelerator() or "cpu")
    executors: list[dict[str, Any]] = [] if experiment.gpus else [{}]
    executors += [{"workers": n} for n in WORKERS if n <= min(cpus, clients)]
    stacks: list[dict[str, Any]] = [{}, *([{"stacked": STACKED}] if can_stack else [])]
    precisions: list[dict[str, Any]] = [{}]
    if not emulates_bfloat16(device):
        precisions += [{"precision": "bfloat16"}] if experiment.precision == "float32" else []
        precisions += [{"model.clip_precision": "bfloat16"}] if method.requires.prompts else []
        precisions += [{"text.precision": "bfloat16"}] if method.requires.text else []
    for parts in product(executors, stacks, precisions):
        settings = {key: value for part in parts for key, value in part.items()}
        if "stacked" not in settings or settings.keys().isdisjoint(FLOAT32_IF_STACKED):
            yield settings


def measure_settings(
    settings: Mapping[str, Any], with_settings: Callable[[Mapping[str, Any]], Experiment]
) -> Measurement:
    """Run a few rounds; impossible settings are a `Measurement` with their reason."""
    import psutil

    from fedray.federation import Federation
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.devices import device_of_this_process, memory_in_use
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import RayExecutor, Worker
    from fedray.runtime.serial import SerialExecutor

    try:
        assembly = Assembly(with_settings(settings))
        device = device_of_this_process(assembly.experiment.server_gpus, key="server_gpus")
        with ExitStack() as closing:
            if "workers" in settings:
                pool = WorkerPool(Worker, assembly.experiment)
                closing.callback(pool.close)
                executor: Any = RayExecutor(assembly, pool)
            else:
                executor = SerialExecutor(assembly, device)
            closing.callback(executor.close)
            a = assembly
            federation = Federation(a.algorithm, executor, a.gate, a.plan, a.server(device))
            seconds = _time_rounds(federation.rounds())
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            memory = sum(process.memory_info().rss for process in processes)
            return Measurement(settings, statistics.median(seconds), memory, memory_in_use())
    except FedrayError as error:
        return Measurement(settings, failure=one_line(error))


def _time_rounds(rounds: Iterator[object]) -> list[float]:
    """Return the seconds of up to `ROUNDS` rounds, without round 0 and, if possible, the first."""
    begin = time.monotonic()
    ends = [begin]
    for _ in rounds:
        ends.append(time.monotonic())
        if len(ends) == ROUNDS + 3 or (len(ends) > 3 and ends[-1] - begin > LONGEST):
            break
    seconds = [after - before for before, after in pairwise(ends)]
    return seconds[2:] or seconds[-1:]


def _name(measured: Measurement) -> str:
    settings = dict(measured.settings)
    workers = settings.pop("workers", None)
    where = "one process" if workers is None else f"{workers} worker{'s' * (workers > 1)}"
    return ", ".join([where, *(f"{key}={value}" for key, value in settings.items())])


def _progress(measured: Measurement) -> str:
    result = measured.failure or f"{measured.seconds:.3g} s a round"
    return f"{_name(measured)}: {result}"


def _section(found: Sequence[Measurement]) -> Section:
    header = ["settings", "seconds a round", "memory"]
    rows = [[_name(each), f"{each.seconds:.3g}", size_of(each.memory)] for each in found]
    if found[0].device_memory is not None:
        header.append("GPU memory")
        rows = [
            [*row, size_of(each.device_memory or 0)] for row, each in zip(rows, found, strict=True)
        ]
    return Section("", (), header, rows)
