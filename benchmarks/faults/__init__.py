"""Faults at random moments, drawn by a seed; every result is compared with the undisturbed one.

    python -m benchmarks.faults                        list the kinds of faults
    python -m benchmarks.faults kills --count 440      kill and resume runs, 440 times
    python -m benchmarks.faults all --count 1000       inject every kind

A kind is a module with `run(count, seed, folder) -> Tally`. `tests/faults/` runs each in short.
"""
