"""fedray: federated-learning experiments with language in the loop, on Ray."""

__version__ = "0.1.0"
