"""Where a federation runs: assembly of its parts, executors, the server actor, resources."""
