"""`python -m benchmarks.faults KIND [--count N] [--seed S]`; see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from benchmarks.faults.tally import Tally

KINDS = {
    "damage": "bit flips, truncations, swaps and edits in the files of a run",
    "poison": "replies of one client that are not what they should be",
}
"""Each module of this package that injects faults, with what it does."""


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
    for kind in kinds:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"fedray-{kind}-") as folder:
            count = -(-args.count // len(kinds))
            found = import_module(f"benchmarks.faults.{kind}").run(count, args.seed, Path(folder))
        took = time.monotonic() - began
        print(f"{kind}: {found.count} faults, {len(found.wrong)} wrong, {took:.0f} s", flush=True)
        total += found
    print(total.table())
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
