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
    TextConfig,
    WireConfig,
)
from fedray.config.files import (
    COMPONENTS,
    EXPERIMENTS,
    check_agreement,
    dump_yaml,
    find_yaml,
    flatten,
    merge,
    override,
    parents_first,
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
from fedray.config.typed import (
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
    validate,
)

__all__ = [
    "COMPONENTS",
    "Component",
    "DataConfig",
    "EXECUTION_KEYS",
    "EXPERIMENTS",
    "Epochs",
    "Experiment",
    "FaultConfig",
    "FileName",
    "Frozen",
    "JoinConfig",
    "LearningRate",
    "LossWeight",
    "MissingRoot",
    "ModelConfig",
    "NoParams",
    "PathText",
    "RESOURCE_KEYS",
    "Seed",
    "Temperature",
    "TextConfig",
    "Tree",
    "WEIGHT_FILES",
    "WireConfig",
    "check_agreement",
    "completed",
    "dump_yaml",
    "find_yaml",
    "flatten",
    "load_experiment",
    "merge",
    "override",
    "parameters",
    "parents_first",
    "parse_assignments",
    "parse_yaml",
    "read_experiment",
    "read_mapping",
    "resolve_root",
    "validate",
]
