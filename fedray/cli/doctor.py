"""`fedray doctor`: check this installation and suggest fixes."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import click

import fedray
from fedray.base.errors import UserError, named
from fedray.base.masking import mask
from fedray.base.processors import allowed_cpus
from fedray.base.units import size_of
from fedray.cli.get import rows
from fedray.command import RUN_ERROR, Command
from fedray.storage.environment import environment, versions
from fedray.storage.files import cache_folder, results_home

Check = Callable[[], "Iterator[Finding]"]
NEEDED_BYTES = 2_000_000_000
"""A warning is printed if less disk space is free."""


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        state: "ok"; "note": optional, or worth knowing; "missing": needed by every run.
        found: what the check found.
        cure: how to fix it; "" if nothing needs fixing.
    """

    state: Literal["ok", "note", "missing"]
    found: str
    cure: str = ""


@click.command(cls=Command)
def command() -> int:
    """Check this installation and suggest fixes.

    Checks packages, hardware, Ray, folders and MLflow. Exit code 1: a component that every run
    needs is missing.
    """
    missing = []
    for what, check in CHECKS.items():
        for state, found, cure in findings_of(check):
            print(f"{state:<8} {what}: {found}" + (f"\n{'':<8} -> {cure}" if cure else ""))
            missing += [what] if state == "missing" else []
    print(f"\nneeded and not there: {', '.join(missing)}" if missing else "\nruns can start")
    return RUN_ERROR if missing else 0


def findings_of(check: Check) -> Iterator[Finding]:
    """Yield the results of a check; an error, which a library may raise, is one, too."""
    try:
        yield from check()
    except UserError as error:
        found, _, cure = str(error).partition("; ")
        yield Finding("missing", found, cure)
    except Exception as error:
        yield Finding("missing", named(error), "install it again; see pyproject.toml")


# --- checks ---------------------------------------------------------------------------------------


def installed_packages() -> Iterator[Finding]:
    """Name the versions of fedray, Python and the packages on which results depend."""
    yield Finding("ok", f"fedray {fedray.__version__} in {Path(fedray.__file__).parent}")
    yield Finding("ok", f"Python {platform.python_version()} ({sys.executable})")
    yield Finding("ok", ", ".join(f"{n} {v}" for n, v in versions().items() if n != "python"))


def hardware() -> Iterator[Finding]:
    """Check PyTorch, CPUs, memory and GPUs; report what results depend on, as run.json does."""
    import psutil
    import torch

    from fedray.runtime.devices import accelerator

    memory = size_of(psutil.virtual_memory().available)
    yield Finding("ok", f"{platform.platform()}; {environment().hardware}")
    yield Finding("ok", f"{allowed_cpus()} CPUs usable, {memory} of memory free")
    if kind := accelerator():
        count = torch.accelerator.device_count()
        yield Finding("ok", f"{count} GPUs of kind {kind}; used with gpus=1 and more")
    elif shutil.which("nvidia-smi"):
        cure = "install a torch build for your CUDA; see pytorch.org"
        yield Finding("note", "no GPU is visible to torch, but nvidia-smi exists", cure)
    else:
        yield Finding("ok", "no GPU; runs use CPUs")


def ray_cluster() -> Iterator[Finding]:
    """Check Ray and the cluster that a run would join."""
    import ray

    from fedray.runtime.cluster import connect

    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        yield Finding("ok", f"{ray.__version__}; a run starts its own cluster")
        return
    connect()  # as a run does; a cluster of another version refuses it
    ray.shutdown()
    yield Finding("ok", f"{ray.__version__}; a run joins RAY_ADDRESS={address}")


def writable_folders() -> Iterator[Finding]:
    """Check the folders of results and caches."""
    for folder, variable in (
        (results_home(), "FEDRAY_RESULTS"),
        (cache_folder(), "FEDRAY_CACHE"),
    ):
        parent = folder.expanduser().absolute()
        while not parent.exists():
            parent = parent.parent
        cure = f"set {variable} to a writable folder with space"
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            yield Finding("missing", f"{folder} cannot be written to", cure)
            continue
        free = shutil.disk_usage(parent).free
        few = free < NEEDED_BYTES
        yield Finding("note" if few else "ok", f"{folder} ({size_of(free)} free)", cure * few)


def data_sets() -> Iterator[Finding]:
    """Check the folder of data sets, and list the papers' sets and weights that are here."""
    home = os.environ.get("FEDRAY_DATA")
    if home is None or not Path(home).is_dir():
        what = "is not set" if home is None else f"is {home}, which is no folder"
        text = f"FEDRAY_DATA {what}; digits and shapes need none"
        yield Finding("note", text, "set FEDRAY_DATA to the folder that holds your data sets")
    here = [name for name, state, *_ in rows() if state == "here"]
    yield Finding("ok", f"{', '.join(here) or 'none'} of the papers' (fedray get lists them)")


def tracker() -> Iterator[Finding]:
    """Check MLflow, and the database or server that runs are logged to."""
    from fedray.runtime.cluster import answers
    from fedray.tracking.store import check_installed, resolve_uri, sqlite_path, ui_command

    check_installed()
    uri = resolve_uri()
    parts = urlsplit(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if sqlite_path(uri) is not None or parts.hostname is None:
        yield Finding("ok", f"{version('mlflow')}; view runs with: {ui_command(uri)}")
    elif answers(f"{parts.hostname}:{port}"):
        yield Finding("ok", f"{version('mlflow')}; {mask(uri)} answers")
    else:
        cure = "start it (mlflow/), correct MLFLOW_TRACKING_URI, or log later with fedray upload"
        yield Finding("note", f"no answer from {mask(uri)}", cure)


CHECKS: dict[str, Check] = {
    "packages": installed_packages,
    "hardware": hardware,
    "Ray": ray_cluster,
    "folder": writable_folders,
    "data": data_sets,
    "MLflow": tracker,
}
"""The checks by what they check, in the order of the output."""
