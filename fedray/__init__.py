"""fedray: federated-learning experiments with language in the loop, on Ray.

The Python API (docs/api.md); each name imports its module when it is first used:

    result = fedray.Experiment("fedtsp_digits", lr=0.1).train()
    result = fedray.load("fedray_results/runs/fedtsp_digits-...")
    result.model(client=0).predict("image.png")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.api.experiment import Experiment
    from fedray.api.result import Result, load
    from fedray.api.studies import Sweep, SweepResult, Table, TableResult

__version__ = "0.1.0"

_HOMES = {
    "Experiment": "fedray.api.experiment",
    "Result": "fedray.api.result",
    "Sweep": "fedray.api.studies",
    "SweepResult": "fedray.api.studies",
    "Table": "fedray.api.studies",
    "TableResult": "fedray.api.studies",
    "load": "fedray.api.result",
}
"""The module that defines each name of the Python API."""

__all__ = [
    "Experiment",
    "Result",
    "Sweep",
    "SweepResult",
    "Table",
    "TableResult",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedray' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
