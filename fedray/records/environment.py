"""The environment that made a run's numbers: hardware, numerical libraries, versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from pydantic.dataclasses import dataclass

from fedray.records.metric import RECORD

_PACKAGES = (
    *("fedray", "torch", "torchvision", "transformers", "open-clip-torch", "safetensors"),
    *("numpy", "scipy", "scikit-learn", "pillow", "pyarrow", "ray", "optuna", "mlflow"),
    "dp-accounting",
)
_NUMERIC = ("git", "fedray", "torch", "torchvision", "transformers", "open-clip-torch", "numpy")
"""The versions that may change numbers."""
_LOW = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
"""Instructions for low precision, as Linux calls them."""
_BLAS, _BLAS_VERSION = r"BLAS_INFO=(\w+)", r"(?:Math Kernel Library|OpenBLAS) Version ([\w.]+)"
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


@dataclass(frozen=True, config=RECORD)
class Environment:
    """What "the same hardware and versions" refers to.

    Attributes:
        versions: of Python and of the installed packages that matter; "git" is the commit of a
            checkout.
        system: operating system, kernel and C library.
        cpu: the processor's model.
        instructions: the instruction set that PyTorch uses, those that low precision depends on,
            and a limit of oneDNN's, if set.
        cores: processors that this process may use.
        threads: of one client step.
        blas: the library of matrix products, with its version.
        onednn: oneDNN's version; "" without oneDNN.
        gpus: the models of the GPUs.
        driver: of the GPUs.
        cuda: that PyTorch was built for.
        cudnn: its version.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    system: str = ""
    cpu: str = ""
    instructions: str = ""
    cores: int = 0
    threads: int = 0
    blas: str = ""
    onednn: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    cudnn: str = ""

    @property
    def hardware(self) -> str:
        """Return the class of hardware and numerical libraries on which numbers are equal."""
        parts = {
            "": f"{self.cpu} ({self.instructions})" if self.cpu else "",
            "GPU ": ", ".join(self.gpus),
            "driver ": self.driver,
            "BLAS ": self.blas,
            "oneDNN ": self.onednn,
            "CUDA ": self.cuda if self.gpus else "",
            "cuDNN ": self.cudnn if self.gpus else "",
        }
        return ", ".join(f"{name}{value}" for name, value in parts.items() if value)

    def changes(self, now: Environment) -> list[str]:
        """Return what differs between this environment and `now` and may change numbers.

        What one of the two does not know is no difference.

        Returns:
            Phrases such as "torch 2.14, now 2.15".
        """
        before, after = self._numeric(), now._numeric()
        return [
            f"{name} {before[name]}, now {after[name]}"
            for name in before
            if before[name] and after.get(name) and before[name] != after[name]
        ]

    def _numeric(self) -> dict[str, str]:
        """Return what may change numbers as text."""
        hardware = {**vars(self), "gpus": ", ".join(self.gpus), "threads": self.threads or ""}
        for name in ("versions", "system", "cores"):
            del hardware[name]
        return {**{name: self.versions.get(name, "") for name in _NUMERIC}, **hardware}


def environment(threads: int | None = None) -> Environment:
    """Describe this process's machine and packages.

    Args:
        threads: of one client step; None: as many as PyTorch uses now.
    """
    import torch

    built, cudnn = torch.__config__.show(), cast(Any, torch.backends.cudnn)
    cuda = torch.cuda.is_available()
    count = torch.cuda.device_count() if cuda else 0
    return Environment(
        versions=versions(),
        system=f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}".strip(),
        cpu=_first(r"model name\s*:\s*(.+)", _cpu_facts()) or platform.machine(),
        instructions=_instructions(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads() if threads is None else threads,
        blas=f"{_first(_BLAS, built)} {_first(_BLAS_VERSION, built)}".strip(),
        onednn=_first(r"(?:MKL-DNN|oneDNN) v([\w.]+)", built),
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(count)),
        driver=_output(*_DRIVER) if cuda else "",
        cuda=str(torch.version.cuda or ""),
        cudnn=str(cudnn.version() or "") if cuda else "",
    )


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and the packages, and the git commit of a checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        found["git"] = _output(
            *("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12")
        )
    return {name: text for name, text in found.items() if text}


def _output(*command: str) -> str:
    """Return the first line that a program prints; "" if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0]


@cache
def _cpu_facts() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return ""


def _instructions() -> str:
    import torch

    there = set(_first(r"flags\s*:\s*(.+)", _cpu_facts()).split())
    names = [torch.backends.cpu.get_cpu_capability(), *(each for each in _LOW if each in there)]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return " ".join([*names, f"(oneDNN: {limit})"] if limit else names)


def _first(pattern: str, text: str) -> str:
    """Return the group that matches; "" if nothing does."""
    found = re.search(pattern, text)
    return found[1].strip() if found else ""
