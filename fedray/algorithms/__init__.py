"""One file per paper. `base.py` holds the interface; a file that defines a method is enough."""

from fedray.algorithms.base import Algorithm
from fedray.algorithms.registry import algorithms

__all__ = ["Algorithm", "algorithms"]
