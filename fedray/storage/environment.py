"""The environment that made a run's numbers: hardware, numerical libraries, versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from pydantic.dataclasses import dataclass

from fedray.storage.metric import RECORD

_PACKAGES = (
    *("fedray", "torch", "torchvision", "transformers", "open-clip-torch", "safetensors"),
    *("numpy", "scipy", "scikit-learn", "pillow", "pyarrow", "ray", "optuna", "mlflow"),
    "dp-accounting",
)
NUMERIC = (
    *("git", "fedray", "torch", "torchvision", "transformers", "open-clip-torch", "numpy"),
    *("hardware", "threads"),
)
"""What may change numbers: versions, hardware and threads."""
_LOW = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
"""Linux's names of the instructions for low precision."""
_BLAS, _BLAS_VERSION = r"BLAS_INFO=(\w+)", r"(?:Math Kernel Library|OpenBLAS) Version ([\w.]+)"


@dataclass(frozen=True, config=RECORD)
class Environment:
    """The hardware, libraries and versions that numbers depend on.

    Attributes:
        versions: versions of Python and of relevant packages; "git" is the commit of a checkout.
        hardware: the class of hardware and numerical libraries on which numbers are equal.
        threads: number of threads of one client step; 0 if unknown.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: str = ""
    threads: int = 0

    def changes(self, now: Environment) -> list[str]:
        """Return the differences between this environment and `now` that may change numbers.

        Values that are unknown in one of the two are skipped.

        Returns:
            Phrases such as "torch 2.14, now 2.15".
        """
        before, after = (
            {**of.versions, "hardware": of.hardware, "threads": of.threads} for of in (self, now)
        )
        values = [(name, before.get(name), after.get(name)) for name in NUMERIC]
        return [f"{n} {was}, now {is_}" for n, was, is_ in values if was and is_ and was != is_]


def environment(threads: int | None = None) -> Environment:
    """Describe this process's machine and packages.

    Args:
        threads: number of threads of one client step; None: the number that PyTorch uses now.
    """
    import torch

    return Environment(versions(), _hardware(), threads or torch.get_num_threads())


@cache
def _hardware() -> str:
    import torch

    built, cudnn = torch.__config__.show(), cast(Any, torch.backends.cudnn)
    cuda, cpus = torch.cuda.is_available(), Path("/proc/cpuinfo")
    facts = cpus.read_text(encoding="utf-8") if cpus.exists() else ""  # it does on Linux
    flags, limit = _first(r"flags\s*:\s*(.+)", facts).split(), os.environ.get("ONEDNN_MAX_CPU_ISA")
    instructions = [torch.backends.cpu.get_cpu_capability(), *(x for x in _LOW if x in flags)]
    instructions += [f"(oneDNN: {limit})"] if limit else []
    name = _first(r"model name\s*:\s*(.+)", facts) or platform.machine()
    parts = {
        "": f"{name} ({' '.join(instructions)})",
        "GPU ": ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))),
        "BLAS ": f"{_first(_BLAS, built)} {_first(_BLAS_VERSION, built)}".strip(),
        "oneDNN ": _first(r"(?:MKL-DNN|oneDNN) v([\w.]+)", built),
        "CUDA ": torch.version.cuda if cuda else "",
        "cuDNN ": cudnn.version() if cuda else "",
    }
    return ", ".join(f"{name}{value}" for name, value in parts.items() if value)


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and the packages, and the git commit of a checkout."""
    numbers = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        with suppress(OSError, subprocess.SubprocessError):  # without git
            described = subprocess.run(
                words, capture_output=True, text=True, timeout=10, check=True
            )
            numbers["git"] = described.stdout.strip()
    return numbers


def _first(pattern: str, text: str) -> str:
    """Return the first group of a match of `pattern`; "" without a match."""
    match = re.search(pattern, text)
    return match[1].strip() if match else ""
