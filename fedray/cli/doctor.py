"""`fedray doctor`: check this installation and suggest fixes."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import click

import fedray
from fedray.base.errors import FedrayError, UserError, named
from fedray.base.masking import mask
from fedray.base.processors import allowed_cpus
from fedray.base.units import size_of
from fedray.cli.get import rows
from fedray.command import RUN_ERROR, Command
from fedray.storage.environment import environment, versions
from fedray.storage.files import cache_folder, results_home

ANSWER_SECONDS = 3.0
NEEDED_BYTES = 2_000_000_000
"""A warning is printed if less disk space is free."""
NEEDED = ("torch", "torchvision", "ray", "mlflow", "optuna", "transformers", "numpy")
"""Packages that every run needs."""

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: the component that was checked.
        state: "ok"; "note": optional, or worth knowing; "missing": needed by every run.
        found: what the check found.
        cure: how to fix it; "" if nothing needs fixing.
    """

    what: str
    state: State
    found: str
    cure: str = ""


@click.command(cls=Command)
def command() -> int:
    """Check this installation and suggest fixes.

    Checks packages, hardware, Ray, folders, MLflow and plug-ins. Exit code 1: a component that
    every run needs is missing.
    """
    missing = []
    for what, check in CHECKS.items():
        for finding in findings_of(what, check):
            print("\n".join(_lines(finding)), flush=True)
            missing += [finding.what] if finding.state == "missing" else []
    print(f"\nneeded and not there: {', '.join(missing)}" if missing else "\nruns can start")
    return RUN_ERROR if missing else 0


def findings_of(what: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the results of a check of `what`; a mistake in a user's setting is one, too."""
    try:
        yield from check()
    except UserError as error:
        found, _, cure = str(error).partition("; ")
        yield Finding(what, "missing", found, cure)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.state:<8} {finding.what}: {finding.found}"
    if finding.cure:
        yield f"{'':<8} -> {finding.cure}"


# --- checks ---------------------------------------------------------------------------------------


def packages() -> Iterator[Finding]:
    """Check fedray, Python, and the packages that every run needs."""
    where = Path(fedray.__file__).parent
    yield Finding("fedray", "ok", f"{fedray.__version__} in {where}")
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    installed = versions()
    if missing := [name for name in NEEDED if name not in installed]:
        cure = "run pip install . in the checkout of fedray"
        yield Finding("packages", "missing", ", ".join(missing), cure)
    text = ", ".join(f"{name} {number}" for name, number in installed.items() if name != "python")
    yield Finding("packages", "ok", f"{text}; pip check compares them with what fedray requires")


def numerics() -> Iterator[Finding]:
    """Report the hardware and libraries that results depend on, as run.json records them."""
    try:
        hardware = environment().hardware
    except Exception:  # PyTorch does not load; `devices` reports the reason
        return
    yield Finding("system", "ok", platform.platform())
    yield Finding("hardware and libraries", "ok", hardware)


def devices() -> Iterator[Finding]:
    """Check PyTorch, CPUs, memory and GPUs."""
    try:
        import psutil
        import torch

        from fedray.runtime.devices import accelerator
    except Exception as error:  # a library that does not load can raise anything
        yield Finding("PyTorch", "missing", named(error), "reinstall torch; see pytorch.org")
        return
    memory = size_of(psutil.virtual_memory().available)
    yield Finding("CPUs", "ok", f"{allowed_cpus()} usable, {memory} of memory free")
    kind = accelerator()
    if kind is not None:
        count = torch.accelerator.device_count()
        yield Finding("GPUs", "ok", f"{count} of kind {kind}; used with gpus=1 and more")
    else:
        driver = shutil.which("nvidia-smi")
        cure = "install a torch build for your CUDA; see pytorch.org" if driver else ""
        text = "none visible to torch, but nvidia-smi exists" if driver else "none; runs use CPUs"
        yield Finding("GPUs", "note" if driver else "ok", text, cure)


def ray_cluster() -> Iterator[Finding]:
    """Check Ray and the cluster that a run would join."""
    try:
        import ray

        from fedray.runtime.cluster import connect
    except Exception as error:
        yield Finding("Ray", "missing", named(error), "pip install --upgrade 'ray[default,tune]'")
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        yield Finding("Ray", "ok", f"{ray.__version__}; a run starts its own cluster")
        return
    connect()  # as a run does; a cluster of another version refuses it
    ray.shutdown()
    yield Finding("Ray", "ok", f"{ray.__version__}; a run joins RAY_ADDRESS={address}")


def folder_findings() -> Iterator[Finding]:
    """Check the folders of results, caches and data sets."""
    for what, folder, variable in (
        ("results", results_home(), "FEDRAY_RESULTS"),
        ("cache", cache_folder(), "FEDRAY_CACHE"),
    ):
        yield _writable(what, folder, variable)
    data = os.environ.get("FEDRAY_DATA")
    if not data:
        text, cure = "FEDRAY_DATA is not set", "set it to the folder that holds your data sets"
        yield Finding("data", "note", f"{text}; digits and shapes do not need it", cure)
    elif not Path(data).is_dir():
        cure = "create it, or set FEDRAY_DATA to the folder that holds your data sets"
        yield Finding("data", "note", f"FEDRAY_DATA={data} is not a folder", cure)
    else:
        names = sorted(path.name for path in Path(data).iterdir() if path.is_dir())
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        content = f"{', '.join(names[:12])}{more}" or "no folders"
        yield Finding("data", "ok", f"{data} contains {content}")
    here = [name for name, state, *_ in rows() if state == "here"]
    text = f"{', '.join(here) or 'none'} of the papers' (fedray get --list)"
    yield Finding("sets and weights", "ok", text)


def _writable(what: str, folder: Path, variable: str) -> Finding:
    """Check that a folder, or its nearest existing parent, can be written to."""
    parent = folder.expanduser().absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        cure = f"set {variable} to a writable folder"
        return Finding(what, "missing", f"{folder} cannot be written to", cure)
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        cure = f"free disk space, or set {variable} to a folder on another disk"
        return Finding(what, "note", f"{folder}: only {size_of(free)} are free", cure)
    return Finding(what, "ok", f"{folder} ({size_of(free)} free)")


def tracker() -> Iterator[Finding]:
    """Check MLflow, and the database or server that runs are logged to."""
    from fedray.tracking.store import check_installed, resolve_uri, sqlite_path, ui_command

    try:
        check_installed()
        uri = resolve_uri()
    except FedrayError as error:
        yield Finding("MLflow", "missing", str(error), "fix this, or pass --no-track")
        return
    parts = urlsplit(uri)
    if sqlite_path(uri) is not None or parts.hostname is None:
        yield Finding("MLflow", "ok", f"{version('mlflow')}; view runs with: {ui_command(uri)}")
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if _answers(f"{parts.hostname}:{port}"):
        yield Finding("MLflow", "ok", f"{version('mlflow')}; {mask(uri)} answers")
    else:
        cure = "start it (mlflow/), correct MLFLOW_TRACKING_URI, or log later with fedray upload"
        yield Finding("MLflow", "note", f"no answer from {mask(uri)}", cure)


def plugin_findings() -> Iterator[Finding]:
    """Check the plug-ins of installed packages."""
    from fedray.registry import installed_points, registry

    points = installed_points()
    if not points:
        return
    try:
        registry("algorithm").names()
    except FedrayError as error:
        yield Finding("plug-ins", "missing", str(error))
        return
    yield Finding("plug-ins", "ok", ", ".join(point.value for point in points))


def _answers(address: str) -> bool:
    """Return True if a server listens at HOST:PORT."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "packages": packages,
    "processor": numerics,
    "PyTorch": devices,
    "Ray": ray_cluster,
    "folders": folder_findings,
    "MLflow": tracker,
    "plug-ins": plugin_findings,
}
"""The checks by what they check, in the order of the output."""
