"""Plug-ins: files and modules of users that register entries, such as methods and models.

plugin.py        the data of a plug-in
reading.py       read `--plugin FILE_OR_MODULE` as texts that can be sent to workers
loading.py       import these texts as modules of this process
copies.py        copies in the folder of a run
named.py         which texts may run
entry_points.py  plug-ins that are installed as packages on every node
"""

from fedray.plugins.copies import write_copies
from fedray.plugins.entry_points import installed_plugin
from fedray.plugins.loading import plugin_of, use
from fedray.plugins.named import allow, named_plugins, plugin_flags
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import (
    check_module_name,
    located,
    needed,
    read_plugin,
    with_siblings,
)
