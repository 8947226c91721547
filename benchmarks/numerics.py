"""Numbers of every method on an accelerator against those on the CPU.

    python -m benchmarks.numerics              all methods, on this machine's accelerator
    python -m benchmarks.numerics fedavg moon

Each method runs the small experiment of `fedray check` (two rounds in float32, three clients) on
the CPU, and on the device: twice as fedray runs, and once with TF32 in convolutions, which is
torch's default. "differs" is the largest difference of a state's tensor to the CPU, relative to the
tensor's largest entry but at least 1; "TF32" is the same for the last run. "same twice" compares
the first two runs bit for bit; operators that torch names as not deterministic follow.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

ROW = "| {:<20} | {:>8} | {:<44} | {:<10} | {:>8} | {} |"
_OPERATOR = re.compile(r"^(\S+) does not have a deterministic implementation")


@dataclass(frozen=True)
class Numbers:
    """The comparison of one method.

    Attributes:
        method: its name.
        difference: the largest relative difference to the CPU.
        tensor: the path of the tensor that differs most.
        same_twice: whether a second run gave every bit again.
        with_tf32: the same with TF32 in convolutions, torch's default.
        operators: operators that torch names as not deterministic.
        failure: the error, if the method did not run on the device; "" if it did.
    """

    method: str
    difference: float = 0.0
    tensor: str = ""
    same_twice: bool = False
    with_tf32: float = 0.0
    operators: tuple[str, ...] = ()
    failure: str = ""

    def row(self) -> str:
        """Return the line of the table."""
        if self.failure:
            return f"| {self.method:<20} | failed: {self.failure} |"
        again = "yes" if self.same_twice else "NO"
        cells = (f"{self.difference:.1e}", self.tensor[-44:], again, f"{self.with_tf32:.1e}")
        return ROW.format(self.method, *cells, ", ".join(self.operators))


def largest(expected: Sequence[Any], actual: Sequence[Any]) -> tuple[float, str]:
    """Return the largest relative difference between two traces, and the path of its tensor."""
    found = (0.0, "")
    for one, other in zip(expected, actual, strict=True):
        for name, value in one.tensors.items():
            here, there = value.double(), other.tensors[name].double()
            if not here.numel():
                continue
            gap = (here - there).abs().max() / here.abs().max().clamp(min=1)
            if not float(gap) <= found[0]:  # NaN is a difference, too
                found = (float(gap), name)
    return found


def compare(method: str) -> Numbers:
    """Run a method on the CPU and on the accelerator; return their differences."""
    import torch

    from fedray.laws.conformance import small_experiment
    from fedray.laws.traces import serial, trace
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.devices import pick_device
    from fedray.runtime.serial import SerialExecutor

    torch.set_num_threads(1)
    device = pick_device(1)

    def on_device() -> Any:
        torch.manual_seed(0)
        return trace(Assembly(experiment), partial(SerialExecutor, device=device), device)

    try:
        experiment = small_experiment(method)
        torch.manual_seed(0)
        expected = trace(Assembly(experiment), serial)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first, second = on_device(), on_device()
            torch.backends.cudnn.allow_tf32 = True
            coarse = on_device()
    except Exception as error:
        return Numbers(
            method, failure=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        )
    matches = [_OPERATOR.match(str(warning.message)) for warning in caught]
    operators = tuple(sorted({match[1] for match in matches if match}))
    same = all(
        torch.equal(value, again.tensors[name])
        for one, again in zip(first, second, strict=True)
        for name, value in one.tensors.items()
    )
    difference, tensor = largest(expected, first)
    return Numbers(method, difference, tensor, same, largest(expected, coarse)[0], operators)


def main() -> None:
    """Parse the command line and compare the methods."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("methods", nargs="*", metavar="METHOD", help="default: all")
    cli.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    args = cli.parse_args()
    from fedray.core import algorithms
    from fedray.runtime.devices import accelerator

    if accelerator() is None:
        raise SystemExit("torch finds no accelerator here")
    print(ROW.format("method", "differs", "most in", "same twice", "TF32", "not deterministic"))
    print("|---" * 6 + "|", flush=True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        methods = args.methods or algorithms.names()
        waiting = [pool.submit(compare, method) for method in methods]
        for done in as_completed(waiting):
            print(done.result().row(), flush=True)


if __name__ == "__main__":
    main()
