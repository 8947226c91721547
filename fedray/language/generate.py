"""Ask a large language model for descriptions of classes.

    fedray generate --classes cat,dog --out pets.json --dataset "pet photos"

Works with any endpoint that supports OpenAI's /chat/completions. Environment variables select the
endpoint: FEDRAY_LLM_BASE_URL (https://api.openai.com/v1), FEDRAY_LLM_MODEL and, if the endpoint
requires a key, FEDRAY_LLM_API_KEY. Answers are stored one by one in $FEDRAY_CACHE/descriptions, so
that an interrupted command asks only for missing ones. The file is written once every class is
described; pass it as `text.descriptions=pets.json`.

Paper: FedTSP section 3.2 and supplementary K.1 (three descriptions per class, by GPT-4o).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from pydantic import Field

from fedray.base.errors import UserError
from fedray.command import PATH, Command, say_stopped
from fedray.config import parse_yaml
from fedray.language.descriptions import (
    EXPECTED,
    MOST_BYTES,
    ClassDescriptions,
    canonical_word,
    display_name,
)
from fedray.storage.files import cache_folder, parse_typed, read_text, write_json

if TYPE_CHECKING:
    import requests

MAX_ATTEMPTS = 3
"""Maximal number of requests for a class whose answers do not have the right form."""

_SYSTEM_PROMPT = (
    "You describe how things look in photographs, for a program that recognises them. "
    "You answer with one JSON object and nothing else."
)

_USER_PROMPT = """\
Describe the class "{label}"{dataset} so that somebody who has never seen it can tell it from the \
other classes: {others}.

Answer with this JSON object:
{{
  "Short Label": "{label}",
  "Short Description": "one phrase of at most 12 words",
  "Fine-grained Descriptions": [
    "one sentence on shape and parts",
    "one sentence on colour, texture and material",
    "one sentence on typical surroundings, or on what tells it from similar classes"
  ],
  "Long Description": "three or four sentences that sum up all of this"
}}

Say only what can be seen in a picture. At most 25 words a sentence. Do not name the class in the \
descriptions."""


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of a language model.

    Attributes:
        url: the base URL, to which /chat/completions is appended.
        model: the model's name at the endpoint.
        key: the secret key, never shown; empty if the endpoint needs none.
        retries: maximal repetitions of a request after 429, 5xx, a time-out or a lost connection.
        backoff_s: seconds before the second repetition; doubled each time, up to a minute. The
            server's Retry-After takes precedence.
        timeout_s: seconds to wait for an answer.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    retries: int = 6
    backoff_s: float = 1.0
    timeout_s: float = 120.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Endpoint:
        """Read FEDRAY_LLM_BASE_URL, FEDRAY_LLM_MODEL and FEDRAY_LLM_API_KEY.

        Raises:
            UserError: if one of the first two is not set, or the URL is invalid.
        """
        url = environ.get("FEDRAY_LLM_BASE_URL", "").strip().rstrip("/")
        model = environ.get("FEDRAY_LLM_MODEL", "").strip()
        if not url or not model:
            unset = "FEDRAY_LLM_MODEL" if url else "FEDRAY_LLM_BASE_URL"
            raise UserError(
                f"{unset} is not set; set FEDRAY_LLM_BASE_URL (for example "
                "https://api.openai.com/v1), FEDRAY_LLM_MODEL and, if needed, FEDRAY_LLM_API_KEY"
            )
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UserError(
                "FEDRAY_LLM_BASE_URL is not an http(s) URL such as https://api.openai.com/v1"
            )
        return cls(url, model, environ.get("FEDRAY_LLM_API_KEY", "").strip())

    @property
    def host(self) -> str:
        """The endpoint's name in messages, since the URL may contain a secret."""
        return urlsplit(self.url).hostname or "the endpoint"

    def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Send a conversation and return the model's answer.

        Raises:
            UserError: if the endpoint refuses the request, or does not answer after all retries.
        """
        reply = self._post(messages)
        try:
            content = reply.json()
        except ValueError:
            content = None
        if not reply.ok or (isinstance(content, dict) and content.get("error")):
            reason = " ".join(reply.text.split())[:200]
            reason = reason.replace(self.key, "***") if self.key else reason
            raise UserError(
                f"{self.host} refused with status {reply.status_code} ({reason}); check "
                "FEDRAY_LLM_BASE_URL, FEDRAY_LLM_MODEL and FEDRAY_LLM_API_KEY and start again; "
                "answers so far are kept"
            )
        try:
            choice = content["choices"][0]
            answer = choice["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"{self.host} did not answer with a chat completion (choices[0].message.content); "
                "check FEDRAY_LLM_BASE_URL"
            ) from None
        if isinstance(answer, list):  # parts, of which thoughts have another type
            parts = (part for part in answer if isinstance(part, dict))
            answer = "".join(str(part.get("text")) for part in parts if part.get("type") == "text")
        if not answer:
            raise UserError(
                f"{self.model} gave no answer (finish_reason: {choice.get('finish_reason')}); "
                "start again, or choose another FEDRAY_LLM_MODEL; answers so far are kept"
            )
        return str(answer)

    def _post(self, messages: Sequence[Mapping[str, str]]) -> requests.Response:
        """Send the request, and repeat it after temporary failures."""
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        retry = Retry(
            total=self.retries,
            backoff_factor=self.backoff_s,
            backoff_max=60,
            status_forcelist=(408, 409, 425, 429, 500, 502, 503, 504, 529),
            allowed_methods=("POST",),
            respect_retry_after_header=True,
            raise_on_status=False,
        )
        try:
            with requests.Session() as session:
                session.mount("http://", HTTPAdapter(max_retries=retry))
                session.mount("https://", HTTPAdapter(max_retries=retry))
                return session.post(
                    f"{self.url}/chat/completions",
                    json={"model": self.model, "messages": list(messages)},
                    auth=self._sign,
                    timeout=(min(30.0, self.timeout_s), self.timeout_s),
                )
        except (requests.RequestException, ValueError, UnicodeError) as error:
            raise UserError(
                f"{self.host} did not answer after {self.retries} retries "
                f"({type(error).__name__}); check FEDRAY_LLM_BASE_URL and start again; "
                "answers so far are kept"
            ) from None

    def _sign(self, request: Any) -> Any:
        # As an auth callable, because requests would replace a plain header by ~/.netrc's password.
        if self.key:
            request.headers["Authorization"] = f"Bearer {self.key}"
        return request


def generate_descriptions(
    classes: Sequence[str],
    endpoint: Endpoint,
    dataset: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, Any]]:
    """Ask for descriptions of every class, one by one, unless an answer is stored already.

    Args:
        classes: class names, all different.
        endpoint: the language model.
        dataset: a description of the pictures, for the prompt.
        log: called with one line per class.

    Returns:
        The content of a description file, in the order of `classes`.

    Raises:
        UserError: if the endpoint fails, or no answer about a class has the right form. Answers so
            far are kept.
    """
    result: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(classes, start=1):
        prompt = _user_prompt(name, classes, dataset)
        path = _answer_file(endpoint, prompt)
        stored = _kept_answer(path)
        if stored is None:
            result[name] = _ask(name, prompt, endpoint)
            write_json(path, result[name])
        else:
            result[name] = stored
        log(f"{number}/{len(classes)} {name}: {'described' if stored is None else 'kept'}")
    return result


def _user_prompt(name: str, classes: Sequence[str], dataset: str | None) -> str:
    contrast = ", ".join(display_name(other) for other in classes if other != name)
    return _USER_PROMPT.format(
        label=display_name(name),
        dataset=f" of the data set {dataset}" if dataset else "",
        others=contrast or "anything else",
    )


def _ask(name: str, prompt: str, endpoint: Endpoint) -> dict[str, Any]:
    """Ask for a class; after an answer of the wrong form, ask again and give the reason."""
    messages = [{"role": "system", "content": _SYSTEM_PROMPT}, {"role": "user", "content": prompt}]
    wrong = ""
    for _ in range(MAX_ATTEMPTS):
        answer = endpoint.ask(messages)
        try:
            return _parse(name, answer)
        except UserError as error:
            wrong = str(error)
        messages = [
            *messages[:2],
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"This is not the wanted JSON object: {wrong}. Again."},
        ]
    raise UserError(
        f"{endpoint.model} gave {MAX_ATTEMPTS} answers of the wrong form about class '{name}', the "
        f"last: {wrong}; start again or choose another FEDRAY_LLM_MODEL; answers so far are kept"
    )


class _Answer(ClassDescriptions):
    """Complete descriptions of one class, with three sentences."""

    short: str = Field(alias="Short Description", min_length=1)
    long: str = Field(alias="Long Description", min_length=1)
    fine: tuple[str, str, str] = Field(alias="Fine-grained Descriptions")


def _parse(name: str, answer: str) -> dict[str, Any]:
    """Return the longest JSON object in an answer, which may have thoughts or a fence around."""
    text, start = "", answer.find("{")
    while start >= 0:
        try:
            _, end = json.JSONDecoder().raw_decode(answer, start)
            text = max(answer[start:end], text, key=len)
        except ValueError:
            end = start + 1
        start = answer.find("{", end)
    text = text or answer[answer.find("{") : answer.rfind("}") + 1]
    parsed: _Answer = parse_typed(text, _Answer, f"the answer, class '{name}'", EXPECTED)
    return parsed.model_dump(mode="json", by_alias=True)


def _answer_file(endpoint: Endpoint, prompt: str) -> Path:
    """Return the file for a model's answer to a prompt; create its folder."""
    question = json.dumps([endpoint.host, endpoint.model, _SYSTEM_PROMPT, prompt])
    folder = cache_folder() / "descriptions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"answers cannot be kept in {folder} ({error}); set FEDRAY_CACHE to a writable folder"
        ) from None
    return folder / f"{hashlib.sha256(question.encode()).hexdigest()}.json"


def _kept_answer(path: Path) -> dict[str, Any] | None:
    """Return the stored answer; None if it is missing or unreadable."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def read_classes(text: str) -> list[str]:
    """Return class names from a comma-separated list, or from a file with one name per line.

    A list may be in brackets, as the value of `data.classes`.

    Raises:
        UserError: if there are no names, or two are the same.
    """
    path = Path(text).expanduser()
    if path.is_file():
        parts = read_text(path, "--classes: the file", MOST_BYTES).splitlines()
    elif text.startswith("["):
        listed = parse_yaml(text, "--classes")
        parts = [str(name) for name in listed] if isinstance(listed, list) else []
    elif "," not in text and ("/" in text or text.endswith(".txt")):
        raise UserError(
            f"--classes: the file {path} does not exist; write [{text}] for a class of that name"
        )
    else:
        parts = text.split(",")
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise UserError(f"--classes: '{text}' holds no class names; expected cat,dog or a file")
    originals: dict[str, str] = {}
    for name in names:
        if canonical_word(name) in originals:
            raise UserError(
                f"--classes: '{originals[canonical_word(name)]}' and '{name}' are the same name; "
                "remove one of them"
            )
        originals[canonical_word(name)] = name
    return names


@click.command(
    cls=Command, epilog="Environment: FEDRAY_LLM_BASE_URL, FEDRAY_LLM_MODEL, FEDRAY_LLM_API_KEY."
)
@click.option("--classes", required=True, help="cat,dog or a file with one name per line.")
@click.option("--out", required=True, type=PATH, help="The JSON file to write.")
@click.option("--dataset", help="A description of the pictures, for the prompt.")
def command(classes: str, out: Path, dataset: str | None) -> None:
    """Ask a large language model for descriptions of classes."""
    endpoint = Endpoint.from_environment()
    names = read_classes(classes)
    if not out.parent.is_dir():
        raise UserError(f"--out: the folder {out.parent} does not exist; create it first")
    if out.exists():
        raise UserError(f"--out: {out} exists; name another file (answers so far are kept)")
    log = partial(print, flush=True)
    try:
        descriptions = generate_descriptions(names, endpoint, dataset, log)
        write_json(out, descriptions)
    except KeyboardInterrupt as stop:
        say_stopped(stop, "answers so far are kept; ask again for what is missing")
        raise
    except OSError as error:
        raise UserError(f"--out: {out} cannot be written: {error}") from None
    print(f"{out}: {len(descriptions)} classes; use it with text.descriptions={out}")
