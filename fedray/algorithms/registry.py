"""The methods by name."""

from __future__ import annotations

from fedray.algorithms.base import Algorithm
from fedray.plugins import Registry

algorithms: Registry[Algorithm] = Registry("algorithm", "fedray.algorithms")
