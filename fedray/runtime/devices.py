"""Choose the device of client steps, and explain errors when its memory runs out."""

from __future__ import annotations

import gc
import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch

from fedray.config import Experiment
from fedray.core import algorithms
from fedray.errors import ServerError, UserError

log = logging.getLogger(__name__)

KINDS = ("cuda", "xpu", "mps")
"""torch's device types of accelerators, in order of preference: NVIDIA and AMD, Intel, Apple."""


def accelerator() -> str | None:
    """Return the type of this machine's accelerator, one of `KINDS`; None if there is none."""
    return next((kind for kind in KINDS if count(kind)), None)


def count(kind: str | None = None) -> int:
    """Return the number of devices of a kind that torch finds on this machine.

    Args:
        kind: one of `KINDS`; None means the result of `accelerator`.
    """
    kind = accelerator() if kind is None else kind
    if kind is None:
        return 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def pick_device(gpus: float) -> torch.device:
    """Return the accelerator if `gpus` is above 0 and torch finds one, else the CPU.

    For analyses of a finished run, which may run on another machine than the run.

    On an accelerator, select deterministic kernels, so that an experiment gives the same numbers
    again, and float32 without TF32, which rounds the factors of a product to 10 bits.
    """
    kind = accelerator() if gpus > 0 else None
    if kind is None:
        return torch.device("cpu")
    if kind == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device(kind)


def device_of_this_process(gpus: float, role: str = "", key: str = "gpus") -> torch.device:
    """Return the accelerator if `gpus` is above 0, else the CPU.

    Args:
        gpus: this process's share of the accelerators.
        role: the process's role on a cluster, such as "worker 2"; "" for a run in one process.
        key: the key of the experiment that gives the share.

    Raises:
        UserError: if `gpus` is above 0 and there is no accelerator.
    """
    device = pick_device(gpus)
    if gpus == 0 or device.type != "cpu":
        return device
    kinds = ", ".join(KINDS)
    if not role:
        raise UserError(
            f"{key}={gpus:g}, but torch finds no accelerator on this machine ({kinds}); set {key}=0"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    raise UserError(
        f"{role} on node {platform.node()} has a share of {gpus:g} accelerators ({key}), but torch "
        f"{torch.__version__} finds none there ({kinds}; CUDA_VISIBLE_DEVICES is {visible}); "
        f"install the accelerator's driver and torch on this node, or set {key}=0"
    )


def emulates_bfloat16(device: torch.device) -> bool:
    """Return True if a device has no fast bfloat16 arithmetic (an x86 CPU without AVX-512).

    With AVX2 alone, a step took 20 times as long in bfloat16 as in float32.
    """
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("NO AVX", "AVX2")


def memory_in_use() -> int | None:
    """Return the bytes in use on the first CUDA device, by all processes; None without one."""
    if not count("cuda"):
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


@cache
def check_speed(key: str, precision: str, device: torch.device) -> None:
    """Warn once per process if a device is slow in the precision of an experiment's key."""
    if precision == "bfloat16" and emulates_bfloat16(device):
        log.warning(
            "%s=bfloat16, but this processor has no AVX-512 instructions for it: steps take "
            "many times as long as with %s=float32",
            key,
            key,
        )


SMALL_MODEL = 100_000
"""Number of parameters below which several threads gain little."""


@cache
def check_threads(threads: int, parameters: int, device: torch.device) -> None:
    """Warn once per process if several threads train a small model on the CPU."""
    if threads > 1 and parameters < SMALL_MODEL and device.type == "cpu":
        log.warning(
            "threads=%d, but a model of %d parameters gains little from several threads, and its "
            "steps take up to ten times as long if another process keeps a core busy; set "
            "threads=1, and workers to the number of cores",
            threads,
            parameters,
        )


def limit_memory(device: torch.device, share: float) -> None:
    """Limit this process to a share of a device's memory, if torch supports that.

    Args:
        device: the device that steps run on.
        share: share of one device's memory; 1 or more means no limit.
    """
    limit = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
    if limit is not None and share < 1:
        limit(share)


# --- out of memory -------------------------------------------------------------------------------

_OUT_OF_MEMORY = re.compile(r"\bout of memory\b|can't allocate memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if an error, or one of its causes, reports that torch is out of memory."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_memory(device: torch.device) -> None:
    """Release the device memory that torch caches."""
    gc.collect()
    empty = getattr(torch.get_device_module(device), "empty_cache", None)
    if empty is not None:
        with suppress(RuntimeError):  # the device itself has failed
            empty()


def out_of_memory(experiment: Experiment, device: torch.device, where: str) -> UserError:
    """Return an error that says where a client's memory ran out, and which keys to change."""
    e, gpu = experiment, device.type != "cpu"
    remedies = [f"lower batch_size (now {e.batch_size})"] if e.batch_size > 1 else []
    if e.workers > 1:
        share = f", which share gpus={e.gpus:g}, or raise gpus" if gpu else ""
        remedies.append(f"lower workers (now {e.workers}{share})")
    if e.precision == "float32" and gpu:
        remedies.append("set precision=bfloat16")
    prompts = algorithms.get(e.algorithm.name).requires.prompts
    remedies.append(f"choose a smaller model.{'clip' if prompts else 'group'}")
    return _memory_error(device, where, remedies)


@contextmanager
def explain_server_memory(experiment: Experiment, device: torch.device) -> Iterator[None]:
    """Turn the server's out-of-memory error into one that names the keys to change."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        free_memory(device)
        where = "the server"
        if isinstance(error, ServerError):
            where = f"server, round {error.round}, step {error.step}"
        remedies = [f"lower workers (now {experiment.workers})"] if experiment.workers > 1 else []
        remedies.append("choose a smaller text.encoder, model.group or model.clip")
        if device.type != "cpu":
            remedies.append("set server_gpus=0 to let the server compute on the CPU")
        raise _memory_error(device, where, remedies) from error


def _memory_error(device: torch.device, where: str, remedies: list[str]) -> UserError:
    memory = "memory" if device.type == "cpu" else f"the memory of the {device.type} device"
    *alternatives, last = remedies
    choices = "; ".join([*alternatives, f"or {last}" if alternatives else last])
    return UserError(f"{where}: {memory} ran out; {choices}")
