"""Overhead of the executors against the bare loop, as ratios taken in one run.

    python -m benchmarks.overhead                      W1, W2, W3 and the memory of 1,000 clients
    python -m benchmarks.overhead --only W3 --turns 20 --json overhead.json

For each workload four processes stay alive and work in turn: a plain single-process PyTorch loop,
the same loop with the allocator's settings of fedray's workers (`keep_freed_memory`), fedray's
serial executor, and fedray on Ray with 2 workers. Against the first loop a ratio shows all that is
gained; against the second what the arithmetic and two processes gain, without the memory. All use
2 threads: the loops and the serial executor 2 threads in one process, Ray 2 workers of 1 thread.
The work is the same: FedAvg from the same weights, partition, cohorts and batch order; at the end
the global models must agree to 1e-4. A turn is a block of rounds without a pause, after a moment
in which the threads of the process before go to sleep (OpenMP's spin on for milliseconds, as long
as a round of W3). Reported is the median over turns of the ratio of a round's seconds to a loop's
in the same turn; start-up is reported separately. Memory is the peak of the process tree
(proportional set size: shared pages count once). A process that dies ends the benchmark, which
then shows what it said last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS, experiment, make_images, rounds_of

HOME = Path(__file__).resolve().parents[1]
THREADS = 2
PAUSE = 0.1  # seconds
SAID = 40  # lines of a dead process that are shown
LOOPS = ("loop", "loop-kept")
MODES = (*LOOPS, "serial", "ray")


def serve(name: str, mode: str, root: Path) -> None:
    """Be one of the processes: do a round whenever a line comes in, say how long it took."""
    started, _ = time.time(), WORKLOADS[name]
    import torch

    from fedray.runtime.assembly import Assembly

    torch.set_num_threads(THREADS)
    assembly = Assembly(experiment(name, root, THREADS if mode == "serial" else 1))
    one_round, final, close = rounds_of(mode, assembly)
    say = os.fdopen(os.dup(1), "w")
    for number, line in enumerate(sys.stdin, start=1):
        if line.startswith("end"):
            torch.save(final(), line.split()[1])
            break
        begun = time.perf_counter()
        one_round(number)
        seconds = time.perf_counter() - begun
        since_start = time.time() - started
        print(json.dumps({"seconds": seconds, "since_start": since_start}), file=say, flush=True)
    close()


def tree_memory(pid: int) -> int:
    """Proportional set size of a process and all below it, in bytes."""
    import psutil

    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


class Side:
    """One of the processes, from outside.

    Args:
        name: the workload.
        mode: one of `MODES`.
        root: a folder for its images, its parameters and what it says.
    """

    def __init__(self, name: str, mode: str, root: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.overhead", "--serve", name, mode, str(root)]
        env = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "RAY_AUTH_MODE": "disabled"}
        self._who = f"{name}, {mode}"
        self._final = root / f"{name}-{mode}.pt"
        self._log = root / f"{name}-{mode}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=env, cwd=HOME,
            )  # fmt: skip
        self.peak = 0
        self._watching = True
        self._watch = threading.Thread(target=self._sample, daemon=True)

    def round(self) -> dict[str, float]:
        """Do one round; returns its seconds and the seconds since the process began."""
        self._tell("round")
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise self._died()

    def measure_memory(self) -> None:
        """Sample the process tree's memory from now on."""
        self._watch.start()

    def end(self) -> Any:
        """Stop the process; returns its final parameters by name."""
        import torch

        self._tell(f"end {self._final}")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._watching = False
        if self._process.wait(timeout=120):
            raise self._died()
        return torch.load(self._final)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _died(self) -> SystemExit:
        """The end of the benchmark, with what the process said last."""
        code = self._process.wait(timeout=120)
        said = self._log.read_text(errors="replace").splitlines()[-SAID:]
        return SystemExit("\n".join([f"{self._who}: its process ended with code {code}", *said]))

    def _sample(self) -> None:
        while self._watching and self._process.poll() is None:
            self.peak = max(self.peak, tree_memory(self._process.pid))
            time.sleep(0.5)


def compare(name: str, turns: int, root: Path) -> dict[str, Any]:
    """Run one workload in every mode, in turn."""
    w = WORKLOADS[name]
    if w.samples:
        make_images(name, root)
    sides = {mode: Side(name, mode, root) for mode in MODES}
    first = {mode: side.round() for mode, side in sides.items()}  # includes start-up
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(turns + 1):
        for mode, side in sides.items():
            time.sleep(PAUSE)
            took = sum(side.round()["seconds"] for _ in range(w.block)) / w.block
            if turn >= 1:
                seconds[mode].append(took)
    for side in sides.values():  # after the timing: sampling costs time itself
        side.measure_memory()
    for side in sides.values():
        side.round()
    time.sleep(1.0)
    finals = {mode: side.end() for mode, side in sides.items()}
    return {
        mode: {
            "seconds": statistics.median(seconds[mode]),
            "ratios": {loop: _ratio(seconds[mode], seconds[loop]) for loop in LOOPS},
            "first_round_seconds": first[mode]["since_start"],
            "peak_bytes": sides[mode].peak,
            "difference": _difference(finals["loop"], finals[mode]),
        }
        for mode in MODES
    }


def _ratio(mine: Sequence[float], loop: Sequence[float]) -> list[float]:
    """Median, least and greatest ratio over turns."""
    ratios = [one / other for one, other in zip(mine, loop, strict=True)]
    return [statistics.median(ratios), min(ratios), max(ratios)]


def _difference(loop: Any, mine: Any) -> float:
    """The greatest difference between two models' parameters."""
    return max(
        float((mine[key].double() - value.double()).abs().max()) for key, value in loop.items()
    )


def show(name: str, found: dict[str, Any]) -> None:
    """Print one workload's rows."""
    for mode, row in found.items():
        ratios = "  ".join(
            f"of {loop} {row['ratios'][loop][0]:5.2f} "
            f"[{row['ratios'][loop][1]:.2f}, {row['ratios'][loop][2]:.2f}]"
            + (f" (aim {WORKLOADS[name].aims[loop]:.2f})" if mode == "ray" else "")
            for loop in LOOPS
        )
        print(
            f"  {mode:9s} {1e3 * row['seconds']:9.1f} ms/round  {ratios}\n"
            f"            first round after {row['first_round_seconds']:5.1f} s, "
            f"peak {row['peak_bytes'] / 1e6:6.0f} MB, parameters within {row['difference']:.1e}",
            flush=True,
        )


def check_same_work(name: str, found: dict[str, Any]) -> None:
    """Refuse ratios of work that was not the same."""
    for mode, row in found.items():
        if not row["difference"] <= 1e-4:
            raise SystemExit(f"{name}: {mode} did not do the same work as the loop")


def many_clients(name: str, root: Path) -> dict[str, Any]:
    """Peak memory of virtual clients whose models are kept between rounds."""
    side = Side(name, "ray", root)
    side.measure_memory()
    took = [side.round()["seconds"] for _ in range(WORKLOADS[name].turns)]
    side.end()
    print(
        f"  ray       {took[-1]:9.1f} s/round, peak of the process tree {side.peak / 1e9:.2f} GB",
        flush=True,
    )
    return {"ray": {"seconds": took[-1], "peak_bytes": side.peak}}


def main() -> None:
    """Parse the command line and run."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    cli.add_argument("--turns", type=int, help="timed turns per workload")
    cli.add_argument("--json", type=Path, help="write the numbers here too")
    cli.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = cli.parse_args()
    if args.serve:
        serve(args.serve[0], args.serve[1], Path(args.serve[2]))
        return
    print(f"{os.cpu_count()} cores, {THREADS} threads in every mode", flush=True)
    results: dict[str, Any] = {"cores": os.cpu_count(), "threads": THREADS, "workloads": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            print(f"\n{name}: {WORKLOADS[name].what}", flush=True)
            if WORKLOADS[name].aims:
                found = compare(name, args.turns or WORKLOADS[name].turns, Path(folder))
                show(name, found)
                check_same_work(name, found)
            else:
                found = many_clients(name, Path(folder))
            results["workloads"][name] = found
            if args.json:
                args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
