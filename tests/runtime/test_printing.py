"""Texts of Ray's processes: what is collected, with which origin, and what is logged once."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import warnings

import pytest
from tensors import CPU

from fedray.errors import UserError
from fedray.runtime.printing import (
    MOST_LINES,
    Output,
    Text,
    TextLog,
    of_clients,
    refuse_breakpoint,
    text_log,
    unpack_experiment,
)
from fedray.runtime.ray_executor import Share, Worker
from fedray.runtime.resolve import resolve

LOGGER = logging.getLogger("of_a_plugin")


def lines(texts: list[Text]) -> list[str]:
    return [text.line for text in texts]


def test_lines_are_taken_once_and_stay_in_the_log(capsys):
    with Output("worker 1") as output:
        print("loss", 2.5)
        print("a", "b", sep="\n")
        assert lines(output.take()) == ["loss 2.5", "a", "b"]
        assert output.take() == []
        assert capsys.readouterr().out == "loss 2.5\na\nb\n"


def test_errors_are_printed_lines_too():
    with Output("worker 1") as output:
        print("no such thing", file=sys.stderr)
        assert output.take() == [Text("worker 1", "no such thing", is_warning=False)]


def test_a_line_may_come_in_parts_and_end_late():
    with Output("worker 1") as output:
        print("loss", end=" ")
        print(2.5)
        print("never ended", end="")
        assert lines(output.take()) == ["loss 2.5", "never ended"]


def test_a_progress_bar_is_one_line():
    with Output("worker 1") as output:
        for percent in (0, 50, 100):
            print(f"\r{percent} %", end="")
        print()
        assert lines(output.take()) == ["100 %"]


def test_of_many_lines_the_first_are_shown():
    with Output("worker 1") as output:
        for number in range(MOST_LINES + 5):
            print(number)
        with of_clients(3):
            print("of a client")
        shown = output.take()
        assert lines(shown)[MOST_LINES:] == ["and 5 more lines", "of a client"]
        assert shown[-1].origin == "client 3"


def test_all_ways_to_warn():
    with Output("worker 1") as output:
        warnings.warn("by Python", stacklevel=1)
        LOGGER.warning("by the log, %d", 2)
        LOGGER.info("not a warning")
        try:
            raise ValueError("no such thing")
        except ValueError:
            LOGGER.exception("an error")
        python, logged, error = output.take()
        assert python.line.startswith("UserWarning: by Python (test_printing.py, line ")
        assert lines([logged, error]) == ["by the log, 2", "an error (ValueError: no such thing)"]
        assert {python.is_warning, logged.is_warning, error.is_warning} == {True}


def test_texts_have_the_clients_as_origin():
    with Output("worker 1") as output:
        print("before", end="")
        with of_clients(3):
            print("alone", end="")
            with of_clients(4, 5, 7):
                LOGGER.warning("together")
        print("after")
        assert [(text.origin, text.line) for text in output.take()] == [
            ("worker 1", "before"),
            ("client 3", "alone"),
            ("clients 4 to 7", "together"),
            ("worker 1", "after"),
        ]


def test_what_was_there_before_comes_back(capsys):
    before = sys.stdout, sys.stderr, sys.breakpointhook, warnings.showwarning
    handlers = list(logging.getLogger().handlers)
    with Output("server"):
        assert sys.breakpointhook is refuse_breakpoint
    assert (sys.stdout, sys.stderr, sys.breakpointhook, warnings.showwarning) == before
    assert logging.getLogger().handlers == handlers
    with of_clients(3):
        print("in one process, as it is")
    assert capsys.readouterr().out == "in one process, as it is\n"


def test_a_breakpoint_names_the_executor_that_has_a_terminal():
    with Output("worker 1"), pytest.raises(UserError, match="--executor serial"):
        breakpoint()


def test_a_warning_is_logged_once_and_a_line_each_time(caplog, capsys):
    texts = TextLog()
    warned, printed = Text("client 3", "small", True), Text("client 3", "loss 2.5", False)
    texts.show([warned, printed], "lr=0.1")
    texts.show([warned._replace(origin="client 4"), printed._replace(origin="")])
    assert caplog.messages == ["lr=0.1: client 3: small", "lr=0.1: client 3: loss 2.5", "loss 2.5"]


def test_a_server_passes_the_texts_of_its_workers_on(caplog):
    with Output("worker 1") as output:
        caplog.handler.setLevel(logging.WARNING)
        given = [Text("client 3", "small", True)] * 2
        TextLog().show(given)
        assert output.take() == given


@pytest.mark.parametrize("fails", [False, True])
def test_texts_of_an_import_are_those_of_the_command(tmp_path, monkeypatch, fails):
    with Output("worker 1") as output:
        path = tmp_path / "talking_plugin.py"
        path.write_text("")
        experiment = resolve("fedavg_digits", ["rounds=1"], [str(path)])

        def use(plugins):
            print("hello")
            if fails:
                raise UserError("no such package")

        monkeypatch.setattr("fedray.config.plugins.use", use)
        output.take()
        try:
            unpack_experiment(experiment.model_dump_json(by_alias=True))
        except UserError:
            assert lines(output.take()) == ["hello"]
        else:
            assert not fails
            assert output.take() == []


class Answering(Worker):
    """A worker without an experiment."""

    def __init__(self) -> None:
        self._output, self._device = Output("worker 0"), CPU

    def _runtime(self, experiment, files):
        print("before")
        if experiment == "fails":
            raise UserError("no such step")


def test_an_answer_carries_its_texts_and_an_error_too(capsys):
    worker, said = Answering(), Text("worker 0", "before", is_warning=False)
    with worker._output:
        *_, texts = worker.run("step", "client_update", Share("works", 0, (), (), (), {}, {}))
        assert texts == [said]
        with pytest.raises(UserError) as error:
            worker.run("step", "client_update", Share("fails", 0, (), (), (), {}, {}))
    assert pickle.loads(pickle.dumps(error.value)).texts == [said]


def test_what_the_command_has_logged_itself_is_not_logged_again(caplog):
    texts = TextLog()
    logging.getLogger("fedray.data").warning("%s images are transparent", 6)
    texts.show([Text("worker 0", "6 images are transparent", True), Text("", "another", True)], "a")
    assert caplog.messages == ["6 images are transparent", "a: another"]
    caplog.clear()
    TextLog().show([Text("worker 0", "6 images are transparent", True)])
    assert caplog.messages == ["worker 0: 6 images are transparent"]  # of another command


@pytest.mark.slow
def test_a_program_without_logging_sees_warnings_once(tmp_path):
    program = (
        "import logging, fedray.runtime.printing\n"
        "logging.getLogger('fedray.data').warning('one')\n"
        "logging.getLogger('fedray.models').warning('one')\n"
        "logging.basicConfig(format='%(message)s, formatted')\n"
        "logging.getLogger('fedray.data').warning('two')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == "one\ntwo, formatted\n"


def test_a_second_run_does_not_repeat_the_warnings_of_the_first(caplog):
    given = [Text("server", "128 features are repeated", True), Text("client 3", "loss 2.5", False)]
    for _ in range(2):
        text_log.show(given)
    assert caplog.messages == ["server: 128 features are repeated", *["client 3: loss 2.5"] * 2]


@pytest.mark.slow
def test_a_program_sees_a_printed_line_each_time():
    program = (
        "from fedray.runtime.printing import Text, text_log\n"
        "for _ in range(2):\n"
        "    text_log.show([Text('client 3', 'loss 2.5', False), Text('server', 'small', True)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == "client 3: loss 2.5\nserver: small\nclient 3: loss 2.5\n"
