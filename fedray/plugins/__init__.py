"""Plug-ins: files and modules of users that register entries, such as methods and models.

plugin.py        the data of a plug-in
reading.py       read `--plugin FILE_OR_MODULE` as texts that can be sent to workers
loading.py       import these texts as modules of this process
copies.py        copies in the folder of a run
trust.py         ask before text of a folder runs
entry_points.py  plug-ins that are installed as packages on every node
"""

from fedray.plugins.copies import check_unchanged, write_copies
from fedray.plugins.entry_points import installed_plugin
from fedray.plugins.loading import plugin_of, use
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import (
    changed_file,
    check_module_name,
    located,
    needed,
    read_plugin,
    with_siblings,
)
from fedray.plugins.trust import trust, trust_all
