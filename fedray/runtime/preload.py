"""Imports what steps need. Idle processes of a local Ray import this module.

The environment variable names the modules, separated by commas.
"""

import os

from fedray.imports import import_quickly

import_quickly(*filter(None, os.environ.get("FEDRAY_PRELOAD", "").split(",")))
