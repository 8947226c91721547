"""Plug-ins: files and modules of users that register entries that can be chosen by name.

plugin.py     the data of a plug-in
reading.py    from `--plugin FILE_OR_MODULE` to texts that can travel
loading.py    import these texts as modules of this process
trust.py      texts that may run without a question
installed.py  modules that are installed on every node
"""

from fedray.plugins.entry_points import installed_plugin
from fedray.plugins.loading import plugin_of, use
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import (
    changed_file,
    check_module_name,
    located,
    needed,
    read_plugin,
    unshipped,
    with_siblings,
)
from fedray.plugins.trust import trust, trust_all
