"""Experiments: their keys, how they are read and validated, and how they are resolved.

schema.py       base classes of typed data; components with typed parameters
messages.py     messages about invalid data
synonyms.yaml   names of the keys in other tools, for suggestions
experiment.py   every key of an experiment with its unit, bounds and default; its identity
files.py        YAML files that extend each other, dotted overrides
plugins.py      the plug-ins of an experiment, used before its other keys are resolved
effects.py      keys that nothing reads in an experiment
input_files.py  all values of an experiment; the files that it names: paths and content
versions.py     the versions of the package's entries that an experiment uses
resolution.py   from a tree to a complete experiment: presets, names and defaults
"""

from fedray.base.shipped import EXPERIMENTS
from fedray.config.effects import NoEffect, is_below, keys_without_effect
from fedray.config.experiment import (
    DATA,
    EXECUTION,
    EXECUTION_KEYS,
    IMAGES,
    LABEL,
    PROTOCOL,
    RESOURCES,
    WEIGHT_FILES,
    YOUNGER,
    DataConfig,
    Experiment,
    FaultConfig,
    JoinConfig,
    ReportConfig,
    keys_of,
    role_of,
)
from fedray.config.experiment_plugins import (
    is_record,
    read_plugins,
    received_experiment,
    with_plugins,
    with_read_plugins,
    with_used_plugins,
)
from fedray.config.files import (
    COMPONENTS,
    MOST_BYTES,
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
    read_extended,
    read_mapping,
)
from fedray.config.input_files import InputFile, content_of, files_of
from fedray.config.resolution import (
    MissingRoot,
    load_experiment,
    missing_roots_allowed,
    preset_keys,
    resolve_root,
)
from fedray.config.schema import (
    Chosen,
    Component,
    Entry,
    Epochs,
    FileName,
    Frozen,
    LearningRate,
    LossWeight,
    PathText,
    Seed,
    Temperature,
    Tree,
    component,
    default_entry,
    validate,
)
from fedray.config.versions import version_changes
