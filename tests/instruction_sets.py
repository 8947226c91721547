"""Run the equation tests under every instruction set of this processor: `make test-isa`.

oneDNN and PyTorch choose their kernels by the processor, and kernels round differently: a test
whose tolerance holds on one processor may fail on the next.

    python tests/instruction_sets.py [--lowest]    the lowest set alone; other tests use the highest
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FLAGS = {
    "AVX2": ("avx2", "avx2"),
    "AVX512_CORE": ("avx512bw", "avx512"),
    "AVX512_CORE_BF16": ("avx512_bf16", "avx512"),
    "AVX512_CORE_AMX": ("amx_bf16", "avx512"),
}
"""oneDNN's names, from the lowest: the flag of a processor that has it, and PyTorch's name."""
TESTS = (
    "tests/equations",
    "tests/invariants/test_precision.py",
    "tests/originals",
)
THREADS = (1, 2)


def available() -> list[str]:
    """Return the instruction sets that this processor has, from the lowest."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return [name for name, (flag, _) in FLAGS.items() if flag in flags]


def main() -> int:
    """Run the tests under each set with one and with two threads; return 1 if any failed."""
    found = available()
    if not found:
        print("this processor has none of", ", ".join(FLAGS))
        return 0
    turns = [(name, threads) for name in found for threads in THREADS]
    if "--lowest" in sys.argv[1:]:
        turns = turns[:1]
    failed = []
    for name, threads in turns:
        print(f"{name}, {threads} thread{'s' * (threads > 1)}", flush=True)
        limits = {"ONEDNN_MAX_CPU_ISA": name, "ATEN_CPU_CAPABILITY": FLAGS[name][1]}
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not long and not ray"]
        done = subprocess.run(
            [*words, *TESTS], env={**os.environ, **limits, "OMP_NUM_THREADS": str(threads)}
        )
        failed += [f"{name} with {threads}"] if done.returncode else []
    if failed:
        print("failed under", ", ".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
