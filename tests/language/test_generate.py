from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedray.base.errors import UserError
from fedray.cli.main import main as fedray
from fedray.language import generate
from fedray.language.descriptions import load_descriptions
from fedray.language.generate import asked_of, read_classes

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


def completion(content: object) -> tuple[int, dict[str, str], str]:
    return 200, {}, json.dumps({"choices": [{"message": {"content": content}}]})


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    """A server, which the environment selects, with quick repetitions."""
    server = Server()
    for name, value in {"BASE_URL": server.url, "MODEL": "tiny", "API_KEY": KEY}.items():
        monkeypatch.setenv(f"FEDRAY_LLM_{name}", value)
    monkeypatch.setattr(generate, "RETRIES", 2)
    monkeypatch.setattr(generate, "BACKOFF_S", 0.01)
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def command(server, tmp_path):
    """Runs the command in this process."""
    out = tmp_path / "pets.json"

    def run(classes: str, *words: str) -> int:
        return fedray(["generate", "--classes", classes, "--out", str(out), *words])

    run.out = out
    return run


@pytest.mark.slow
def test_the_file_is_one_that_can_be_loaded(command, server, capsys):
    assert command("cat,ice_cream", "--dataset", "photographs of pets") == 0
    found = load_descriptions(str(command.out), ["cat", "ice cream"])
    assert [entry.label for entry in found.values()] == ["cat", "ice cream"]
    assert list(json.loads(command.out.read_text())["cat"]) == list(entry("cat"))
    assert len(server.asked) == 2
    assert server.asked[0]["model"] == "tiny"
    question = server.asked[0]["messages"][1]["content"]
    assert 'how the class "cat" looks in photographs of pets' in question
    assert "the other classes: ice cream. Give three descriptions of one sentence" in question
    assert '"Short Label": "cat",' in question
    assert server.headers[0]["path"] == "/v1/chat/completions"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "1/2 cat" in capsys.readouterr().out


@pytest.mark.slow
def test_an_instruction_of_the_user(command, server, tmp_path, capsys):
    own = tmp_path / "own.txt"
    own.write_text('Say how "{label}" differs from {others}. Mind {braces}.')
    assert command("cat,dog", "--instruction", str(own)) == 0
    question = server.asked[0]["messages"][1]["content"]
    assert question.startswith('Say how "cat" differs from dog. Mind {braces}.\n\nAnswer with')
    own.write_text("Describe it.")
    assert command("cat,dog", "--instruction", str(own)) == 2
    assert "does not say {label}" in capsys.readouterr().err
    assert len(server.asked) == 2


@pytest.mark.slow
def test_a_failure_leaves_the_answers_which_are_not_asked_again(command, server, capsys):
    good = completion(json.dumps(entry("cat")))
    server.plan = [good, *[(500, {}, "down")] * 3]
    assert command("cat,dog") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: 127.0.0.1 gave no chat completion, but status 500 (down")
    assert captured.err.count("\n") == 1
    assert list(json.loads(command.out.read_text())) == ["cat"]
    assert len(server.asked) == 4
    assert command("cat,dog") == 0
    assert len(server.asked) == 5  # only the dog
    assert list(json.loads(command.out.read_text())) == ["cat", "dog"]


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_found_before_a_model_is_asked(command, server):
    command.out.write_text("[]")
    assert command("cat,dog") == 2
    assert fedray(["generate", "--classes", "cat", "--out", "/nowhere/a.json"]) == 2
    assert not server.asked


CAT = json.dumps(entry("cat"))
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
    [[(429, {"Retry-After": "0"}, "busy"), (503, {}, "later")], *([completion(b)] for b in BAD)],
)
def test_a_server_that_is_busy_or_answers_badly_is_asked_again(server, plan):
    server.plan = list(plan)
    assert asked_of("cat", 'What is a "cat"?') == entry("cat")
    assert len(server.asked) == len(plan) + 1
    if plan[0][0] == 200:  # with the reason
        assert "not the wanted JSON object: the answer" in server.asked[1]["messages"][1]["content"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        f'<think>I fill in {{"Short Label": ...}}.</think>\n{CAT}',
        f"Here:\n```json\n{CAT}\n```\nI kept the braces {{}}.",
        [{"type": "thinking", "thinking": []}, {"type": "text", "text": CAT}],
    ],
)
def test_answers_as_other_models_write_them(server, content):
    server.plan = [completion(content)]
    assert asked_of("cat", "?") == entry("cat")
    assert len(server.asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message", "times"),
    [
        (completion("no"), "gave 3 answers of the wrong form about class 'cat'", 3),
        (completion(None), r"tiny gave no answer \(finish_reason: None\)", 1),
        ((200, {}, "<html>"), r"gave no chat completion, but status 200 \(<html>\)", 1),
        ((200, {}, '{"error": "overloaded"}'), "overloaded", 1),
        ((401, {}, f"no such key: {KEY}"), r"status 401 \(no such key: \*\*\*\)", 1),
    ],
)
def test_answers_that_never_get_better(server, answer, message, times):
    server.always = answer
    with pytest.raises(UserError, match=message) as raised:
        asked_of("cat", "?")
    assert KEY not in str(raised.value)
    assert len(server.asked) == times


@pytest.mark.slow
def test_nobody_there(server, monkeypatch):
    monkeypatch.setenv("FEDRAY_LLM_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"127\.0\.0\.1 did not answer \(Conn"):
        asked_of("cat", "?")


def test_classes(tmp_path):
    (tmp_path / "lines.txt").write_text("cat\n\ndogs, all\n")
    assert read_classes(str(tmp_path / "lines.txt")) == ["cat", "dogs, all"]
    assert read_classes("cat, ice cream,") == ["cat", "ice cream"]
    assert read_classes('[cat, "dogs, all", 3]') == ["cat", "dogs, all", "3"]
    assert read_classes("cat") == ["cat"]
    assert read_classes("T-shirt/top,Trouser") == ["T-shirt/top", "Trouser"]
    for text, message in (
        ("none.txt", r"--classes: the file none\.txt cannot be read: No such file"),
        ("cat,Cat", "'cat' and 'Cat' are the same name"),
    ):
        with pytest.raises(UserError, match=message):
            read_classes(text)
