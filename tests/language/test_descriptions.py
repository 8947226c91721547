from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedray.base.errors import UserError
from fedray.config import component
from fedray.language.descriptions import (
    FOLDER,
    ClassDescriptions,
    load_descriptions,
    shipped_names,
)
from fedray.language.styles import DESCRIPTION, class_texts

ENTRY = {
    "Short Label": "cat",
    "Short Description": "a small furry animal",
    "Fine-grained Descriptions": ["fur", "whiskers", "a tail"],
    "Long Description": "It has fur. It has whiskers.",
}

FINE = "Fine-grained Descriptions"

CLASSES = {
    "cifar10": "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck",
    "digits_again": "zero,one,two,three,four,five,six,seven,eight,nine",
    "digits": "zero,one,two,three,four,five,six,seven,eight,nine",
}
NUMBER = {"cifar100": 100, "tiny_imagenet": 200}


def texts(
    found: dict[str, ClassDescriptions] | None,
    names: list[str],
    style: str,
    template: str = DESCRIPTION,
) -> list[list[str]]:
    return component("text style", style).build().texts(found, names, template)


def write(folder: Path, content: object) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "pets.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_files_are_whole(name):
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    classes = CLASSES.get(name, ",".join(content)).split(",")
    assert len(content) == NUMBER.get(name, 10)
    descriptions = load_descriptions(name, classes)
    for style in ("fine", "short", "long"):
        found = texts(descriptions, classes, style)
        assert [len(k) for k in found] == [3 if style == "fine" else 1] * len(classes)
        flat = [text for k in found for text in k]
        assert len(set(flat)) == len(flat)


@pytest.mark.data
@pytest.mark.parametrize("name", shipped_names())
def test_shipped_files_fit_the_data(name):
    info = Path(os.environ.get("FEDRAY_DATA", "/nowhere")) / name / "dataset_info.json"
    if not info.is_file():
        pytest.skip(f"no {name} below FEDRAY_DATA")
    load_descriptions(name, json.loads(info.read_text())["class_names"])


def test_eq3_texts_by_hand(tmp_path):
    entry = {**ENTRY, "Short Label": "gelato"}
    found = load_descriptions(write(tmp_path, {"Ice cream": entry}), ["ice_cream"])
    assert texts(found, ["ice_cream"], "fine") == [
        [f"A photo of a gelato: {aspect}" for aspect in ("fur", "whiskers", "a tail")]
    ]
    assert texts(found, ["ice_cream"], "short") == [["A photo of a gelato: a small furry animal"]]
    assert texts(found, ["ice_cream"], "long", "{label}, {description}") == [
        ["gelato, It has fur. It has whiskers."]
    ]
    assert texts(None, ["ice_cream"], "handcrafted") == [["A photo of a ice cream."]]
    assert texts(None, ["ice_cream"], "name") == [["ice cream"]]


def test_order_is_that_of_the_classes_and_more_classes_are_welcome(tmp_path):
    path = write(tmp_path, {name: {**ENTRY, "Short Label": name} for name in ("a", "b", "c")})
    found = load_descriptions(path, ["c", "A"])
    assert [entry.label for entry in found.values()] == ["c", "a"]
    assert texts(found, ["A", "c"], "fine", "{label} {description}") == [
        ["a fur", "a whiskers", "a a tail"],
        ["c fur", "c whiskers", "c a tail"],
    ]


TWICE = f'{{"cat": {json.dumps(ENTRY)}, "cat": {json.dumps(ENTRY)}}}'


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"dog": ENTRY}, "cat"),
        ({"cat": {**ENTRY, FINE: []}}, f"cat.{FINE}"),
        ({"cat": {**ENTRY, FINE: "x"}}, f"cat.{FINE}"),
        ({"cat": {**ENTRY, FINE: ["x", " ", "y"]}}, f"cat.{FINE}.1"),
        ({"cat": {**ENTRY, FINE: ["x"] * 101}}, f"cat.{FINE}"),
        ({"cat": {**ENTRY, "Long Description": ""}}, "cat.Long Description"),
        ({"cat": {"Short Label": "cat"}}, f"cat.{FINE}"),
        ({"cat": {**ENTRY, "Shrt": "x"}}, "cat.Shrt"),
        ({"cat": "furry"}, "cat"),
        ({"cat": ENTRY, "Cat_": ENTRY}, "'Cat_'"),
        ({}, "pets.json"),
        ("[1]", "pets.json"),
        ("{", "pets.json"),
        (TWICE, "'cat'"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, content, place):
    with pytest.raises(UserError) as raised:
        load_descriptions(write(tmp_path, content), ["cat"])
    message = str(raised.value)
    assert "text.descriptions" in message
    assert place in message
    assert "\n" not in message


def test_which_file(tmp_path):
    with pytest.raises(UserError, match=r"text\.descriptions: cifar .*Did you mean 'cifar10"):
        load_descriptions("cifar", ["cat"])
    with pytest.raises(UserError, match=r"text\.descriptions: .*none\.json"):
        load_descriptions(str(tmp_path / "none.json"), ["cat"])
    with pytest.raises(UserError, match="classes: 'ice cream' and 'Ice_Cream' are"):
        load_descriptions(write(tmp_path, {"ice cream": ENTRY}), ["ice cream", "Ice_Cream"])


def test_class_texts_reads_descriptions_only_where_the_style_needs_them(tmp_path):
    path = write(tmp_path, {"cat": ENTRY})
    fine, plain = (component("text style", name).build() for name in ("fine", "plain"))
    assert class_texts(fine, ["cat"], path, "{description}") == [["fur", "whiskers", "a tail"]]
    assert class_texts(plain, ["cat"], "no such file") == [["a photo of a cat"]]
    with pytest.raises(UserError, match=r"text\.style=fine needs text\.descriptions"):
        class_texts(fine, ["cat"])


def test_hard_negatives_are_accepted_and_ignored(tmp_path):
    path = write(tmp_path, {"cat": {**ENTRY, "Hard Negatives": ["lynx", "fox"]}})
    plain = write(tmp_path / "plain", {"cat": ENTRY})
    assert load_descriptions(path, ["cat"]) == load_descriptions(plain, ["cat"])


def test_what_a_style_needs(tmp_path):
    short = {key: ENTRY[key] for key in ("Short Label", "Fine-grained Descriptions")}
    found = load_descriptions(write(tmp_path, {"cat": short}), ["cat"])
    assert len(texts(found, ["cat"], "fine")[0]) == 3
    with pytest.raises(UserError, match=r"style=long needs \"Long Description\".* 'cat'"):
        texts(found, ["cat"], "long")
    with pytest.raises(UserError, match=r"text\.style=fine needs text\.descriptions"):
        texts(None, ["cat"], "fine")


@pytest.mark.parametrize(
    "template",
    [
        "A {label}.",
        "{description} {more}",
        "{",
        "{} {description}",
        "{label:99999999999} {description}",
        "{description!r}",
    ],
)
def test_what_a_template_needs(tmp_path, template):
    found = load_descriptions(write(tmp_path, {"cat": ENTRY}), ["cat"])
    with pytest.raises(UserError, match=r"text\.template='.*must hold \{description\}"):
        texts(found, ["cat"], "fine", template)


def test_any_number_of_descriptions_is_taken_but_the_same_for_every_class(tmp_path):
    def pets(*numbers):
        entries = {
            name: {"Short Label": name, "Fine-grained Descriptions": ["fur", "a tail"][:number]}
            for name, number in zip(("cat", "dog"), numbers, strict=True)
        }
        return load_descriptions(write(tmp_path, entries), ["cat", "dog"])

    assert [len(each) for each in texts(pets(1, 1), ["cat", "dog"], "fine")] == [1, 1]
    with pytest.raises(UserError, match=r"class 'cat' has 1 .* class 'dog' has 2; give every"):
        pets(1, 2)


def test_a_file_is_looked_up_below_the_data_first(tmp_path, monkeypatch, assemble):
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts", {"cat": ENTRY})
    changes = {"text.descriptions": "texts/pets.json"}
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    found = assemble("local", changes).experiment.text.descriptions
    assert found == str(tmp_path / "texts" / "pets.json")
    monkeypatch.delenv("FEDRAY_DATA")
    assert assemble("local", changes).experiment.text.descriptions != found


def test_the_first_of_the_descriptions(tmp_path):
    found = load_descriptions(write(tmp_path, {"cat": ENTRY}), ["cat"])

    def fine(count):
        style = component("text style", "fine", count=count).build()
        return [text.rsplit(": ", 1)[-1] for text in style.texts(found, ["cat"])[0]]

    assert [fine(1), fine(2), fine(None)] == [["fur"], ["fur", "whiskers"], ENTRY[FINE]]
    with pytest.raises(UserError, match="is missing or too short"):
        fine(4)
