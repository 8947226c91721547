"""Compare the numbers of two commits: `python -m tools.recordings REF [PART ...]`.

The commit REF is checked out in a temporary git worktree. The same program (`side.py`) runs there
and in this checkout, in one process each, and writes what it measured: metrics, bytes, and hashes
of weights. The differences are printed. Nothing is kept.

The program uses only what users use: commands, the Python API, and the files of a run's folder. How
these files are read is in `readers.py`, one function a file, and what has been renamed between REF
and this checkout is in `names.py`.
"""
