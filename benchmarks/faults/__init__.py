"""Faults at scale: injected at random by seed, each held against the undisturbed result.

    python -m benchmarks.faults                        what there is
    python -m benchmarks.faults damage --count 300     damaged run folders, 300 of them
    python -m benchmarks.faults all --count 1000       every kind, shared out

A kind is a module with `run(count, seed, folder) -> Tally`. `tests/faults/` runs each in short.
"""
