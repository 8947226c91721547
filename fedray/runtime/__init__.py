"""Execution of a run: assembly of its parts, executors, workers, the server actor, resources."""
