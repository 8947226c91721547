"""Where steps run: the accelerator that torch has, or the CPU. The one place that chooses."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedray.config import Experiment
from fedray.core import algorithms
from fedray.errors import ServerError, UserError

log = logging.getLogger(__name__)

KINDS = ("cuda", "xpu", "mps")
"""torch's names of what is used, the first that is there: NVIDIA's and AMD's, Intel's, Apple's."""


def accelerator() -> str | None:
    """The kind of accelerator that steps can run on here; None without one."""
    return next((kind for kind in KINDS if count(kind)), None)


def count(kind: str | None = None) -> int:
    """How many devices of a kind torch has here.

    Args:
        kind: one of `KINDS`; None means the one that is used.
    """
    kind = accelerator() if kind is None else kind
    if kind is None:
        return 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def pick_device(gpus: float) -> torch.device:
    """The accelerator when a share was asked for and is really there, else the CPU.

    There the deterministic kernels are chosen: the same experiment gives the same numbers.
    """
    kind = accelerator() if gpus > 0 else None
    if kind is None:
        return torch.device("cpu")
    if kind == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.device(kind)


def device_of_this_process(gpus: float) -> torch.device:
    """The accelerator where one was asked for.

    Raises:
        UserError: when there is none.
    """
    device = pick_device(gpus)
    if gpus > 0 and device.type == "cpu":
        raise UserError(
            f"gpus={gpus:g}, but torch finds no accelerator on this machine "
            f"({', '.join(KINDS)}); set gpus=0"
        )
    return device


def emulates_bfloat16(device: torch.device) -> bool:
    """Whether a device has no fast arithmetic in bfloat16: an x86 processor without AVX-512.

    On one with AVX2 alone a step in bfloat16 took 20 times as long as in float32.
    """
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("NO AVX", "AVX2")


@cache
def say_that_bfloat16_is_slow() -> None:
    """Warn of it, once in a process."""
    log.warning(
        "precision=bfloat16, but this processor has no AVX-512 to compute it with: steps take many "
        "times as long as with precision=float32"
    )


def limit_memory(device: torch.device, share: float) -> None:
    """Keep this process to its share of a device's memory, where torch can.

    Args:
        device: where its steps run.
        share: of one device; 1 and more is all of it.
    """
    limit = getattr(_module(device), "set_per_process_memory_fraction", None)
    if limit is not None and share < 1:
        limit(share)


# --- random generators ---------------------------------------------------------------------------


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the device's own generator; the CPU has the default one."""
    module = _module(device)
    if module is not None:
        module.manual_seed(seed)


def random_state(device: torch.device) -> Tensor | None:
    """What the device's generator would draw next; None on the CPU."""
    module = _module(device)
    return None if module is None else module.get_rng_state()


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    """Go back to a state of the device's generator."""
    if state is not None:
        _module(device).set_rng_state(state)


def _module(device: torch.device) -> Any:
    """`torch.cuda` and the like; None for the CPU."""
    return None if device.type == "cpu" else torch.get_device_module(device)


# --- memory that runs out ------------------------------------------------------------------------

_SAID = re.compile(r"\bout of memory\b|can't allocate memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error of torch, or one that it came from, says that memory is used up."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and _SAID.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_memory(device: torch.device) -> None:
    """Give back what torch keeps of a device's memory for later."""
    gc.collect()
    empty = getattr(_module(device), "empty_cache", None)
    if empty is not None:
        with suppress(RuntimeError):  # the device has failed for good
            empty()


def out_of_memory(experiment: Experiment, device: torch.device, where: str) -> UserError:
    """One sentence with the keys to change, about a client's step.

    Args:
        experiment: what was run.
        device: what has no more memory.
        where: "client 3, round 2, step client_update".
    """
    e, gpu = experiment, device.type != "cpu"
    ways = [f"lower batch_size (now {e.batch_size})"] if e.batch_size > 1 else []
    if e.workers > 1:
        share = f", which share gpus={e.gpus:g}, or raise that" if gpu else ""
        ways.append(f"lower workers (now {e.workers}{share})")
    if e.precision == "float32" and gpu:
        ways.append("set precision=bfloat16")
    prompts = algorithms.get(e.algorithm.name).requires.prompts
    ways.append(f"choose a smaller model.{'clip' if prompts else 'group'}")
    return _ran_out(device, where, ways)


@contextmanager
def servers_memory(experiment: Experiment, device: torch.device) -> Iterator[None]:
    """Say in one sentence, with the keys to change, where the server's memory ran out.

    Raises:
        UserError: in place of an error that says so.
    """
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
        ways = [f"lower workers (now {experiment.workers})"] if experiment.workers > 1 else []
        ways.append("choose a smaller text.encoder, model.group or model.clip")
        if device.type != "cpu":
            ways.append("set server_gpus=0 to let the server compute on the CPU")
        raise _ran_out(device, where, ways) from error


def _ran_out(device: torch.device, where: str, ways: list[str]) -> UserError:
    memory = "memory" if device.type == "cpu" else f"the memory of the {device.type} device"
    *most, last = ways
    choices = "; ".join([*most, f"or {last}" if most else last])
    return UserError(f"{where}: {memory} ran out; {choices}")
