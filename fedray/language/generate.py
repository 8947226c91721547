"""Ask a large language model for descriptions of classes.

    fedray generate --classes cat,dog --out pets.json --dataset "pet photos"

Works with any endpoint that supports OpenAI's /chat/completions. Environment variables select the
endpoint: FEDRAY_LLM_BASE_URL (https://api.openai.com/v1), FEDRAY_LLM_MODEL and, if the endpoint
requires a key, FEDRAY_LLM_API_KEY. Answers are written one by one, and the same command again asks
only for classes that the file does not have. Pass it as `text.descriptions=pets.json`.

Paper: FedTSP section 3.2 and supplementary K.1 (three descriptions per class, by GPT-4o). The
instruction asks for the same in other words; `--instruction` takes any other text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from pydantic import Field

from fedray.base.errors import UserError, one_line
from fedray.command import PATH, Command
from fedray.config import parse_yaml
from fedray.language.descriptions import (
    EXPECTED,
    MOST_BYTES,
    ClassDescriptions,
    by_canonical_name,
    display_name,
    read_descriptions,
)
from fedray.storage.files import parse_typed, read_json, read_text, write_json

if TYPE_CHECKING:
    import requests

MAX_ATTEMPTS = 3
"""Maximal number of requests for a class whose answers do not have the right form."""
RETRIES, BACKOFF_S, TIMEOUT_S = 6, 1.0, 120.0
"""Repetitions of a request after a temporary failure or a lost connection, seconds before the
second (doubled each time; the server's Retry-After takes precedence), seconds to wait for one."""
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Status codes of temporary failures."""

INSTRUCTION = """\
Describe how the class "{label}" looks in {dataset}, so that somebody who has never seen it can \
tell it from the other classes: {others}. Give three descriptions of one sentence each: of its \
shape and parts; of its colours, textures and materials; and of its typical surroundings, or of \
what tells it from similar classes. Say only what can be seen in a picture, in at most 25 words a \
sentence, without the name of the class."""
"""What the model is asked; of another instruction, {dataset} and {others} may be left out."""
_ROLE = (
    "You describe how things look in photographs, for a program that recognises them. "
    "You answer with one JSON object and nothing else."
)
_FORM = """

Answer with this JSON object:
{
  "Short Label": "{label}",
  "Short Description": "one phrase of at most 12 words",
  "Fine-grained Descriptions": ["the first description", "the second", "the third"],
  "Long Description": "three or four sentences that sum up all of this"
}"""
_KEPT = "answers so far are kept"


def endpoint() -> tuple[str, str, str]:
    """Return base URL, model and secret key ("" for none) from the environment.

    Raises:
        UserError: if one of the first two is not set.
    """
    names = ("BASE_URL", "MODEL", "API_KEY")
    url, model, key = (os.environ.get(f"FEDRAY_LLM_{name}", "").strip() for name in names)
    if not url or not model:
        raise UserError(
            "set FEDRAY_LLM_BASE_URL (for example https://api.openai.com/v1), FEDRAY_LLM_MODEL "
            "and, if needed, FEDRAY_LLM_API_KEY"
        )
    return url.rstrip("/"), model, key


def ask(question: str) -> str:
    """Send a question to the endpoint and return the answer.

    Raises:
        UserError: if the endpoint refuses the request, or gives no answer after all retries.
    """
    url, model, key = endpoint()
    reply = _post(question)
    try:
        choice = reply.json()["choices"][0]
        answer = choice["message"]["content"]
    except (ValueError, LookupError, TypeError):
        text = one_line(reply.text.replace(key, "***") if key else reply.text)
        raise UserError(
            f"{_host(url)} gave no chat completion, but status {reply.status_code} ({text}); check "
            f"FEDRAY_LLM_BASE_URL, FEDRAY_LLM_MODEL and FEDRAY_LLM_API_KEY; {_KEPT}"
        ) from None
    if isinstance(answer, list):  # parts, of which thoughts have another type
        answer = "".join(part["text"] for part in answer if part.get("type") == "text")
    if not answer:  # a reasoning model has spent its tokens on thoughts
        reason = choice.get("finish_reason")
        raise UserError(f"{model} gave no answer (finish_reason: {reason}); {_KEPT}")
    return str(answer)


def _host(url: str) -> str:
    """Return the endpoint's name in messages, since the URL may contain a secret."""
    return urlsplit(url).hostname or "the endpoint"


def _post(question: str) -> requests.Response:
    """Send the request, and repeat it after temporary failures."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    url, model, key = endpoint()
    retry = Retry(
        total=RETRIES,
        backoff_factor=BACKOFF_S,
        status_forcelist=RETRIED,
        allowed_methods=("POST",),
        raise_on_status=False,
    )
    messages = [{"role": "system", "content": _ROLE}, {"role": "user", "content": question}]
    content = {"model": model, "messages": messages}

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        if key:  # as `auth`, because requests would replace a plain header by ~/.netrc's password
            request.headers["Authorization"] = f"Bearer {key}"
        return request

    try:
        with requests.Session() as session:
            session.mount(url, HTTPAdapter(max_retries=retry))
            place = f"{url}/chat/completions"
            return session.post(place, json=content, auth=sign, timeout=TIMEOUT_S)
    except requests.RequestException as error:
        raise UserError(
            f"{_host(url)} did not answer ({type(error).__name__}); check FEDRAY_LLM_BASE_URL; "
            f"{_KEPT}"
        ) from None


class _Answer(ClassDescriptions):
    """Complete descriptions of one class, with three sentences."""

    short: str = Field(alias="Short Description", min_length=1)
    long: str = Field(alias="Long Description", min_length=1)
    fine: tuple[str, str, str] = Field(alias="Fine-grained Descriptions")


def asked_of(name: str, question: str) -> dict[str, Any]:
    """Ask for the descriptions of a class.

    Raises:
        UserError: if the endpoint fails, or `MAX_ATTEMPTS` answers do not have the right form.
    """
    asked, reason = question, ""
    for _ in range(MAX_ATTEMPTS):
        answer = ask(asked)
        try:
            return _parse(name, answer)
        except UserError as error:
            reason = str(error)
            asked = f"{question}\n\nAn earlier answer was not the wanted JSON object: {reason}"
    raise UserError(
        f"the model gave {MAX_ATTEMPTS} answers of the wrong form about class '{name}', the last: "
        f"{reason}; choose another FEDRAY_LLM_MODEL; {_KEPT}"
    )


def _parse(name: str, answer: str) -> dict[str, Any]:
    """Return the JSON object in an answer, which may have thoughts before and a fence around."""
    answer = answer.rpartition("</think>")[2]
    text = answer[answer.find("{") :]
    with suppress(ValueError):  # which the next lines say better
        text = text[: json.JSONDecoder().raw_decode(text)[1]]  # without remarks behind it
    parsed: _Answer = parse_typed(text, _Answer, f"the answer, class '{name}'", EXPECTED)
    return parsed.model_dump(mode="json", by_alias=True)


def questions(
    classes: Sequence[str], dataset: str = "photographs", instruction: str = INSTRUCTION
) -> dict[str, str]:
    """Return what the model is asked about each class, by class.

    In the instruction, {label} stands for the class, {others} for all other classes and {dataset}
    for `dataset`. It must name the class.
    """
    if "{label}" not in instruction:
        raise UserError("--instruction: the text does not say {label} where the class is named")
    asked = {}
    for name in classes:
        others = ", ".join(display_name(other) for other in classes if other != name)
        texts = {"dataset": dataset, "others": others or "all", "label": display_name(name)}
        asked[name] = instruction + _FORM
        for word, text in texts.items():
            asked[name] = asked[name].replace(f"{{{word}}}", text)
    return asked


def read_classes(text: str) -> list[str]:
    """Return class names from a list as that of `data.classes`, or a .txt file with one per line.

    Raises:
        UserError: if the file does not exist, or two names are the same.
    """
    if text.endswith(".txt"):
        parts: list[Any] = read_text(Path(text), "--classes: the file", MOST_BYTES).splitlines()
    else:
        parts = parse_yaml(text, "--classes") if text.startswith("[") else text.split(",")
    names = [str(part).strip() for part in parts if str(part).strip()]
    by_canonical_name(names, "--classes")
    return names


@click.command(
    cls=Command, epilog="Environment: FEDRAY_LLM_BASE_URL, FEDRAY_LLM_MODEL, FEDRAY_LLM_API_KEY."
)
@click.option("--classes", required=True, help="cat,dog or a .txt file with one name per line.")
@click.option("--out", required=True, type=PATH, help="The JSON file to write.")
@click.option("--dataset", default="photographs", help="What the pictures are, for {dataset}.")
@click.option(
    "--instruction", type=PATH, help="A text with {label}, and {dataset} and {others} if needed."
)
def command(classes: str, out: Path, dataset: str, instruction: Path | None) -> None:
    """Ask a large language model for descriptions of classes."""
    endpoint()
    names, text = read_classes(classes), INSTRUCTION
    if instruction is not None:
        text = read_text(instruction, "--instruction: the file", MOST_BYTES)
    if not out.parent.is_dir():
        raise UserError(f"--out: there is no folder {out.parent}")
    described = {}
    if out.exists():
        read_descriptions(out)
        described = read_json(out)
    for number, (name, question) in enumerate(questions(names, dataset, text).items(), 1):
        if name not in described:
            described[name] = asked_of(name, question)
            write_json(out, described)
        print(f"{number}/{len(names)} {name}", flush=True)
    print(f"{out}: {len(described)} classes; use it with text.descriptions={out}")
