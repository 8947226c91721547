"""Execution of a run: its parts, its clients' steps in this process or on Ray, its folder.

A local Ray listens on the loopback address alone; Ray decides that when it is imported.
"""

import os

if os.environ.get("RAY_ADDRESS", "") in ("", "local"):
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
