"""`python -m benchmarks.faults KIND [--count N] [--seed S]`; see the package."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from benchmarks.faults.tally import Tally

KINDS = {
    "kills": "a serial run killed at random moments and resumed, again and again",
    "workers": "Ray workers, server actors and drivers killed in living runs",
    "replies": "Ray workers that stand still for a while, with a time-out and without",
    "nodes": "nodes of a cluster on this machine killed under a run",
    "sweeps": "drivers of sweeps killed and resumed",
    "disk": "a disk that is full at a random operation of a run, then is not",
    "damage": "bit flips, truncations, swaps and edits in the files of a run",
    "poison": "replies of one client that are not what they should be",
    "settings": "wrong keys, values, words and files, from the types of all settings",
    "tracker": "a tracking server that hangs, fails, dies or forgets to answer; drivers killed",
}
"""Each module of this package that injects faults, with what it does."""

WEIGHTS = {"nodes": 0.1, "sweeps": 0.1, "replies": 0.5}
"""How much smaller a share of `all` those get that take long; 1 is what the others get."""


def shares(kinds: list[str], count: int) -> dict[str, int]:
    """How many faults each kind is to inject, `count` or a few more in all."""
    whole = sum(WEIGHTS.get(kind, 1.0) for kind in kinds)
    return {kind: math.ceil(count * WEIGHTS.get(kind, 1.0) / whole) for kind in kinds}


def main(argv: list[str] | None = None) -> int:
    """Inject faults and print what came of them; 1 when any ended as it must not."""
    listing = "\n".join(f"  {name:<10} {what}" for name, what in KINDS.items())
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=f"kinds of faults:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("kind", choices=[*KINDS, "all"])
    cli.add_argument("--count", type=int, default=100, help="faults to inject, of all kinds")
    cli.add_argument("--seed", type=int, default=0)
    args = cli.parse_args(argv)
    kinds = list(KINDS) if args.kind == "all" else [args.kind]
    total = Tally()
    for kind, count in shares(kinds, args.count).items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"fedray-{kind}-") as folder:
            found = import_module(f"benchmarks.faults.{kind}").run(count, args.seed, Path(folder))
        took = time.monotonic() - began
        print(f"{kind}: {found.count} faults, {len(found.wrong)} wrong, {took:.0f} s", flush=True)
        total += found
    print(total.table())
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
