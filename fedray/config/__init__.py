"""The typed experiment: what can be set, how it is read, and what it resolves to.

typed.py       typed plain data, and the one sentence about what is wrong with it
experiment.py  every key of an experiment with its unit, bounds and default; its identity
files.py       YAML files, what they extend, dotted overrides
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
    ModelConfig,
    PrivacyConfig,
    TextConfig,
    WireConfig,
)
from fedray.config.files import (
    COMPONENTS,
    EXPERIMENTS,
    dump_yaml,
    find_yaml,
    flatten,
    merge,
    override,
    parse_assignments,
    parse_yaml,
    read_experiment,
    read_mapping,
)
from fedray.config.resolution import (
    MissingRoot,
    completed,
    load_experiment,
    parameters,
    resolve_root,
)
from fedray.config.typed import Component, Frozen, NoParams, Tree, validate

__all__ = [
    "COMPONENTS",
    "Component",
    "DataConfig",
    "EXECUTION_KEYS",
    "EXPERIMENTS",
    "Experiment",
    "FaultConfig",
    "Frozen",
    "JoinConfig",
    "MissingRoot",
    "ModelConfig",
    "NoParams",
    "PrivacyConfig",
    "RESOURCE_KEYS",
    "TextConfig",
    "Tree",
    "WEIGHT_FILES",
    "WireConfig",
    "completed",
    "dump_yaml",
    "find_yaml",
    "flatten",
    "load_experiment",
    "merge",
    "override",
    "parameters",
    "parse_assignments",
    "parse_yaml",
    "read_experiment",
    "read_mapping",
    "resolve_root",
    "validate",
]
