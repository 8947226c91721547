"""`python -m benchmarks.faults KIND [--count N] [--seed S]`; see the package."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from benchmarks.faults.harness import Tally

KINDS = {
    "kills": "kill a serial run at random moments and resume it, again and again",
    "workers": "kill Ray workers, server actors and drivers of living runs",
    "nodes": "kill nodes of a cluster on this machine under a run; print recovery times",
    "sweeps": "kill drivers of sweeps and resume them",
    "disk": "fill the disk at a random operation of a run, then free it",
}
"""The modules of this package that inject faults."""

WEIGHTS = {"nodes": 0.1, "sweeps": 0.1}
"""The share of `all` that slow kinds get, relative to the others."""


def shares(kinds: list[str], count: int) -> dict[str, int]:
    """Divide `count` faults among the kinds, rounded up."""
    whole = sum(WEIGHTS.get(kind, 1.0) for kind in kinds)
    return {kind: math.ceil(count * WEIGHTS.get(kind, 1.0) / whole) for kind in kinds}


def main(argv: list[str] | None = None) -> int:
    """Inject faults and print the outcomes; return 1 if any outcome is wrong."""
    listing = "\n".join(f"  {name:<10} {summary}" for name, summary in KINDS.items())
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=f"kinds of faults:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("kind", choices=[*KINDS, "all"])
    cli.add_argument("--count", type=int, default=100, help="number of faults, of all kinds")
    cli.add_argument("--seed", type=int, default=0)
    args = cli.parse_args(argv)
    kinds = list(KINDS) if args.kind == "all" else [args.kind]
    total = Tally()
    for kind, count in shares(kinds, args.count).items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"fedray-{kind}-") as folder:
            tally = import_module(f"benchmarks.faults.{kind}").run(count, args.seed, Path(folder))
        seconds = time.monotonic() - began
        print(
            f"{kind}: {tally.count} faults, {len(tally.wrong)} wrong, {seconds:.0f} s", flush=True
        )
        total += tally
    print(total.table())
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
