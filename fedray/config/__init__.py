"""The typed experiment: what can be set, how it is read, and what it resolves to.

typed.py       typed plain data; components and their typed parameters
messages.py    messages about invalid data
synonyms.yaml  what other tools call the keys, for suggestions
experiment.py  every key of an experiment with its unit, bounds and default; its identity
files.py       YAML files, what they extend, dotted overrides
plugins.py     an experiment's plug-ins, used before it is resolved
input_files.py the files that an experiment names: their place and content
sources.py     where the values of an experiment file come from
resolution.py  presets, names and defaults: from a tree to a complete experiment
"""

from fedray.config.experiment import (
    EXECUTION_KEYS,
    RESOURCE_KEYS,
    WEIGHT_FILES,
    DataConfig,
    Experiment,
    FaultConfig,
    JoinConfig,
    ReportConfig,
)
from fedray.config.files import (
    COMPONENTS,
    dump_yaml,
    find_yaml,
    flatten,
    is_key,
    listed,
    merge,
    merged,
    override,
    parents_first,
    parse_assignments,
    parse_yaml,
    read_chain,
    read_experiment,
    read_mapping,
)
from fedray.config.input_files import InputFile, content_of, files_of
from fedray.config.plugins import (
    named_plugins,
    read_plugins,
    with_plugins,
    with_read_plugins,
    with_used_plugins,
)
from fedray.config.resolution import (
    MissingRoot,
    completed,
    load_experiment,
    resolve_root,
)
from fedray.config.schema import (
    Component,
    Epochs,
    FileName,
    Frozen,
    LearningRate,
    LossWeight,
    NoParams,
    PathText,
    Seed,
    Temperature,
    Tree,
    component_of,
    named,
    parameters,
    validate,
)
from fedray.config.sources import sources_of
from fedray.shipped import EXPERIMENTS
