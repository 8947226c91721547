from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from fedray.base.errors import UserError
from fedray.cli.main import main as fedray
from fedray.language import generate
from fedray.language.descriptions import load_descriptions
from fedray.language.generate import Endpoint, generate_descriptions, read_classes

KEY = "sk-very-secret"


def entry(name: str) -> dict:
    return {
        "Short Label": name,
        "Short Description": "furry",
        "Fine-grained Descriptions": ["one", "two", "three"],
        "Long Description": "All of it.",
    }


class Server:
    """A chat endpoint that does what `plan` says, then answers well."""

    def __init__(self) -> None:
        self.plan: list[tuple[int, dict[str, str], str]] = []
        self.always: tuple[int, dict[str, str], str] | None = None
        self.asked: list[dict] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(body)
                server.headers.append({"path": self.path, **dict(self.headers)})
                status, headers, content = server.answer(body)
                raw = content.encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, body: dict) -> tuple[int, dict[str, str], str]:
        if self.always is not None:
            return self.always
        if self.plan:
            return self.plan.pop(0)
        question = body["messages"][1]["content"]
        return completion(json.dumps(entry(question.split('"')[1])))


def completion(content: str) -> tuple[int, dict[str, str], str]:
    return 200, {}, json.dumps({"choices": [{"message": {"content": content}}]})


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def endpoint(server) -> Endpoint:
    return Endpoint(server.url, "tiny", KEY, retries=2, backoff_s=0.01, timeout_s=5)


@pytest.fixture
def command(server, tmp_path, monkeypatch):
    """Runs the command in this process, with quick repetitions."""
    monkeypatch.setenv("FEDRAY_LLM_BASE_URL", server.url)
    monkeypatch.setenv("FEDRAY_LLM_MODEL", "tiny")
    monkeypatch.setenv("FEDRAY_LLM_API_KEY", KEY)
    read = Endpoint.from_environment

    def quick() -> Endpoint:
        found = read()
        return Endpoint(found.url, found.model, found.key, 2, 0.01, 5)

    monkeypatch.setattr(generate.Endpoint, "from_environment", quick)
    out = tmp_path / "pets.json"

    def run(classes: str) -> int:
        return fedray(["generate", "--classes", classes, "--out", str(out), "--dataset", "Pets"])

    run.out = out
    return run


@pytest.mark.slow
def test_the_file_is_one_that_can_be_loaded(command, server, capsys):
    assert command("cat,ice_cream") == 0
    found = load_descriptions(str(command.out), ["cat", "ice cream"])
    assert [entry.label for entry in found.classes.values()] == ["cat", "ice cream"]
    assert list(json.loads(command.out.read_text())["cat"]) == list(entry("cat"))
    assert len(server.asked) == 2
    assert server.asked[0]["model"] == "tiny"
    assert "of the data set Pets" in server.asked[0]["messages"][1]["content"]
    assert server.headers[0]["path"] == "/v1/chat/completions"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "1/2 cat: described" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_asked_twice(command, server):
    assert command("cat,dog") == 0
    command.out.unlink()
    assert command("cat,dog") == 0
    assert len(server.asked) == 2


@pytest.mark.slow
def test_a_file_is_never_replaced(command, server, capsys):
    command.out.write_text("notes of mine")
    assert command("cat,dog") == 2
    assert "exists; name another file" in capsys.readouterr().err
    assert command.out.read_text() == "notes of mine"
    assert not server.asked


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(endpoint, server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"answers cannot be kept in .*; set FEDRAY_CACHE to a"):
        generate_descriptions(["cat"], endpoint)
    assert not server.asked


BAD = [
    "I like cats.",
    '{"Short Label": "cat"',
    json.dumps({**entry("cat"), "Fine-grained Descriptions": ["one"]}),
    json.dumps({key: value for key, value in entry("cat").items() if key != "Long Description"}),
]
"""Answers of the wrong form."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        [(429, {"Retry-After": "0"}, "busy"), (503, {}, "later")],
        [completion(f"Here:\n```json\n{json.dumps(entry('cat'))}\n```\n")],
        *([completion(bad)] for bad in BAD),
    ],
)
def test_a_server_that_is_busy_or_answers_badly_is_asked_again(endpoint, server, plan):
    server.plan, fenced = list(plan), "Here" in plan[0][2]
    assert generate_descriptions(["cat"], endpoint) == {"cat": entry("cat")}
    assert len(server.asked) == len(plan) + (not fenced)
    if plan[0][0] == 200 and not fenced:  # with the reason
        roles = [message["role"] for message in server.asked[1]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert "not the wanted JSON object: the answer" in server.asked[1]["messages"][3]["content"]


CAT = json.dumps(entry("cat"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'<think>I fill in {{"Short Label": ...}}.</think>\n{CAT}', None),
        (f"```json\n{CAT}\n```\nThe braces {{}} are kept.", None),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": CAT}], None),
        (None, "no answer .*length"),
        ([], "no answer .*length"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
    ],
)
def test_answers_as_other_models_write_them(monkeypatch, content, message):
    endpoint = Endpoint("http://127.0.0.1:9/v1", "tiny")
    choice = {"finish_reason": "length", "message": {"content": content}}
    reply = requests.Response()
    reply.status_code = 200
    whole = content if isinstance(content, dict) else {"choices": [choice]}
    reply._content = json.dumps(whole).encode()
    monkeypatch.setattr(Endpoint, "_post", lambda self, messages: reply)
    if message is None:
        assert generate_descriptions(["cat"], endpoint) == {"cat": entry("cat")}
    else:
        with pytest.raises(UserError, match=message):
            generate_descriptions(["cat"], endpoint)


@pytest.mark.slow
def test_retry_after_is_respected(endpoint, server, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    server.plan = [(429, {"Retry-After": "7"}, "busy")]
    generate_descriptions(["cat"], endpoint)
    assert slept == [7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message", "times"),
    [
        (completion("no"), "tiny gave 3 answers of the wrong form about class 'cat'", 3),
        ((200, {}, "<html>"), "did not answer with a chat completion", 1),
    ],
)
def test_answers_that_never_get_better(endpoint, server, answer, message, times):
    server.always = answer
    with pytest.raises(UserError, match=message):
        generate_descriptions(["cat"], endpoint)
    assert len(server.asked) == times


@pytest.mark.slow
def test_a_failure_leaves_the_answers_and_no_file(command, server, capsys):
    good = completion(json.dumps(entry("cat")))
    server.plan = [good, *[(500, {}, "down")] * 3]
    assert command("cat,dog") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: 127.0.0.1 refused with status 500 (down); check FEDRAY_")
    assert captured.err.count("\n") == 1
    assert not command.out.exists()
    assert len(server.asked) == 4
    assert command("cat,dog") == 0
    assert len(server.asked) == 5  # only the dog
    assert list(json.loads(command.out.read_text())) == ["cat", "dog"]


@pytest.mark.slow
def test_the_key_is_never_shown(command, server, capsys, endpoint):
    server.always = (401, {}, f"no such key: {KEY}")
    assert command("cat") == 2
    captured = capsys.readouterr()
    assert "status 401 (no such key: ***)" in captured.err
    assert KEY not in captured.err + captured.out + repr(endpoint)
    assert len(server.asked) == 1  # a refusal is not repeated


@pytest.mark.slow
def test_nobody_there(endpoint):
    nobody = Endpoint("http://127.0.0.1:9", "tiny", "", 1, 0.01, 1)
    with pytest.raises(UserError, match=r"127\.0\.0\.1 did not answer after 1 retries \(Conn"):
        generate_descriptions(["cat"], nobody)


def test_classes(tmp_path):
    (tmp_path / "lines.txt").write_text("cat\n\nice cream\n")
    assert read_classes("cat, ice cream,") == ["cat", "ice cream"]
    assert read_classes(str(tmp_path / "lines.txt")) == ["cat", "ice cream"]
    assert read_classes("T-shirt/top,Trouser") == ["T-shirt/top", "Trouser"]
    assert read_classes('[cat, "dogs, all", 3]') == ["cat", "dogs, all", "3"]
    for text, message in (
        ("none.txt", r"the file none\.txt does not exist"),
        (" , ", "holds no class names"),
        ("cat,Cat", "'cat' and 'Cat' are the same name"),
    ):
        with pytest.raises(UserError, match=message):
            read_classes(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "error: FEDRAY_LLM_BASE_URL is not set"),
        ({"BASE_URL": "http://x"}, "error: FEDRAY_LLM_MODEL is not set"),
        ({"BASE_URL": "x", "MODEL": "y"}, "is not an http(s) URL"),
        ({"BASE_URL": "http://127.0.0.1:9", "MODEL": "y"}, "error: --out: the folder /no does not"),
    ],
)
def test_what_is_not_set_is_one_sentence(monkeypatch, capsys, settings, message):
    for name in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"FEDRAY_LLM_{name}", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(f"FEDRAY_LLM_{name}", value)
    assert fedray(["generate", "--classes=a", "--out=/no/where"]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
