"""Plug-ins: files and modules of a user's own that register what can be chosen by name.

plugin.py     what a plug-in is
reading.py    from `--plugin FILE_OR_MODULE` to texts that can travel
loading.py    these texts as modules of this process, under names that are the same everywhere
trust.py      texts that may run without a question
installed.py  modules that are installed, on every node by whoever installs there
"""

from fedray.plugins.installed import installed_plugin, is_installed
from fedray.plugins.loading import plugin_of, use
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import (
    changed_file,
    check_module_name,
    check_names,
    located,
    needed,
    read_plugin,
    unshipped,
    with_siblings,
)
from fedray.plugins.trust import trust, trust_all
