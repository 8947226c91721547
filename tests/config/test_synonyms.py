"""Words of neighbouring tools and papers lead to our keys."""

from __future__ import annotations

import pytest

from fedray.base.errors import UserError
from fedray.config import Experiment, load_experiment, read_experiment
from fedray.config.files import COMPONENTS
from fedray.config.messages import CHOOSES, synonyms
from fedray.config.registry import parameters_of, registry

WORDS = [(word, key) for key, words in synonyms().items() for word in words]


def exists(key: str) -> bool:
    """Whether a key is one of the experiment, or of some entry that it chooses."""
    owner = next((each for each in COMPONENTS if key.startswith(f"{each}.")), None)
    if owner is not None:
        entries = registry(COMPONENTS[owner]).entries()
        params = [parameters_of(entry) for entry in entries if parameters_of(entry)]
        names = {field.alias or name for p in params for name, field in p.model_fields.items()}
        return key.removeprefix(f"{owner}.") in names
    model = Experiment
    *sections, last = key.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    return last in model.model_fields


@pytest.mark.parametrize("key", [*synonyms(), *CHOOSES.values()])
def test_every_key_that_is_suggested_exists(key):
    assert exists(key)


def test_no_word_stands_twice_or_is_a_key_itself():
    words = [word for word, _ in WORDS]
    assert len(set(words)) == len(words)
    assert words == [word.lower() for word in words]
    assert set(words) & set(Experiment.model_fields) == set()


@pytest.mark.parametrize(("word", "key"), WORDS)
def test_a_synonym_is_answered_with_the_key(word, key):
    said = f"unknown key '{word}' in the experiment. Did you mean '{key}'?"
    with pytest.raises(UserError) as refused:
        load_experiment(read_experiment("local_digits"), [(word, 1)])
    assert str(refused.value) == said
