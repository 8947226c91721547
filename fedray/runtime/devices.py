"""The devices of steps, and their memory: its peak, what malloc keeps, and its end."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import resource
import sys
from contextlib import suppress

import torch

from fedray.base.errors import UserError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h


def accelerator() -> str | None:
    """Return the device type of this machine's accelerator, such as "cuda"; None without one."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type


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


def device_of_this_process(gpus: float, key: str = "gpus") -> torch.device:
    """Return the accelerator if `gpus` is above 0, else the CPU.

    Args:
        gpus: this process's share of the accelerators.
        key: the key of the experiment that gives the share.

    Raises:
        UserError: if `gpus` is above 0 and there is no accelerator.
    """
    device = pick_device(gpus)
    if gpus == 0 or device.type != "cpu":
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    raise UserError(
        f"{key}={gpus:g}, but torch {torch.__version__} finds no "
        f"accelerator on {platform.node()} (CUDA_VISIBLE_DEVICES is {visible}); install the "
        f"accelerator's driver and torch there, or set {key}=0"
    )


_OUT_OF_MEMORY = re.compile(r"\bout of memory\b|can't allocate memory", re.IGNORECASE)


def free_memory() -> None:
    """Release the device memory that torch caches."""
    gc.collect()
    with suppress(RuntimeError):  # the device itself has failed
        torch.accelerator.empty_cache()


def out_of_memory(error: BaseException, device: torch.device, where: str) -> UserError | None:
    """Return an error that says where torch's memory ran out, and what to do, and free the rest.

    None if neither the error nor one of its causes says so.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RuntimeError) and _OUT_OF_MEMORY.search(str(cause)):
            free_memory()
            memory = "memory" if device.type == "cpu" else f"the memory of the {device.type} device"
            return UserError(
                f"{where}: {memory} ran out; lower workers or batch_size, choose a smaller model, "
                "model.clip or text.encoder, or set server_gpus=0"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def peak_rss() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_memory(device: torch.device) -> int:
    """Return the most bytes that this process's tensors have had on a device; 0 on the CPU."""
    if device.type == "cpu":
        return 0
    peak = getattr(torch.get_device_module(device), "max_memory_allocated", None)
    return 0 if peak is None else int(peak(device))  # MPS does not count


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system after every step.

    Each step allocates the same megabytes of activations again. Page faults on returned memory
    took a quarter of the time of a small CNN on a CPU. Other C libraries are left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # glibc's maximum
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
