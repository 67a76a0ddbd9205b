"""The log: one form for people, one for programs, and no secret in either."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from foliot.cli.logs import configure
from foliot.engine.telemetry.context import RequestContext, log_fields, log_run
from foliot.kernel.run.events import RunCreated
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.settings.settings import load_settings
from foliot.tools.secrets.masking import Masker

log = logging.getLogger("foliot.test")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    configure(settings())  # whoever served in this process before may have left its own
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def settings(**given: str):
    return load_settings(given, {})


def run(namespace: str = "", task: str = "") -> State:
    """A run of an agent without a name."""
    state = State(RunSpec(agent="", namespace=namespace, model="m"), "r1")
    state.created = RunCreated("", "sha256:0", task=task)
    return state


@contextmanager
def logged_with(state: State) -> Iterator[None]:
    before = log_run(state)
    yield
    assert log_run(before) is state


def lines(capsys) -> list[dict[str, str]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_of_json_says_where_it_comes_from(capsys) -> None:
    configure(settings(log_format="json"))
    with logged_with(run("team-a", "t1")):
        log.warning("the lease of %s is over", "r1")
    log.info("too quiet to be shown")
    (line,) = lines(capsys)
    assert line.pop("at").endswith("+00:00")
    assert line == {
        "namespace": "team-a",
        "run": "r1",
        "task": "t1",
        "level": "warning",
        "logger": "foliot.test",
        "message": "the lease of r1 is over",
    }


def test_known_secrets_and_what_looks_like_one_are_taken_out_everywhere(capsys) -> None:
    masker = Masker()
    masker.add("correct horse battery")
    configure(settings(log_format="json"))
    log.error("it said: correct horse battery", extra={"header": "Authorization: Bearer abcdefghijkl"})
    try:
        raise RuntimeError("password=hunter2hunter2")
    except RuntimeError:
        log.exception("it broke")
    text = capsys.readouterr().err
    for secret in ("correct horse", "abcdefghijkl", "hunter2"):
        assert secret not in text
    assert "RuntimeError" in text
    assert masker is not None


def test_a_message_that_cannot_be_formatted_is_shown_and_not_lost(capsys) -> None:
    configure(settings(log_format="json"))
    record = log.makeRecord("foliot.test", logging.ERROR, "here", 1, "%d things", ("many",), None)
    logging.getLogger().handlers[-1].handle(record)
    assert "many" in lines(capsys)[0]["message"]


def test_text_of_a_service_has_times_and_fields(capsys) -> None:
    configure(settings(log_level="info"), service=True)
    with logged_with(run()):
        log.info("taken over")
    line = capsys.readouterr().err
    assert line.endswith("INFO foliot.test: taken over [run=r1]\n")


@pytest.mark.parametrize(("level", "told"), [("", ["one"]), ("warning", []), ("info", ["one", "another"])])
def test_a_service_says_what_it_does_unless_a_level_was_chosen(capsys, level: str, told: list[str]) -> None:
    configure(settings(**({"log_level": level} if level else {})), service=True, tells="foliot.test.work")
    logging.getLogger("foliot.test.work").info("one")
    logging.getLogger("foliot.test.other").info("another")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == told


def test_a_command_that_ends_soon_is_left_as_it_is(capsys) -> None:
    before = list(logging.getLogger().handlers)
    configure(settings())
    assert logging.getLogger().handlers == before


def test_configuring_again_replaces_and_does_not_add(capsys) -> None:
    for _ in range(3):
        configure(settings(log_format="json"))
    log.warning("once")
    assert len(lines(capsys)) == 1


async def test_tasks_that_work_starts_carry_its_fields_and_others_do_not() -> None:
    async def seen() -> dict[str, str]:
        return dict(log_fields())

    with RequestContext("q1"), logged_with(run()):
        inner = asyncio.create_task(seen())
    outer = asyncio.create_task(seen())
    assert await inner == {"request": "q1", "run": "r1"}
    assert await outer == {}


async def test_what_a_tool_logs_carries_the_run(tmp_path, capsys) -> None:
    from foliot import Agent, Runtime, ScriptedModel, tool

    @tool(effect="read")
    async def speak() -> str:
        """Logs."""
        log.warning("spoken")
        return "said"

    configure(settings(log_format="json"))
    agent = Agent("speaker", model=ScriptedModel([{"call": "speak"}, {"say": "done"}]), tools=[speak])
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.run(agent, "go", run_id="r1")
    (line,) = [each for each in lines(capsys) if each["message"] == "spoken"]
    assert (line["run"], line["agent"], line["namespace"]) == ("r1", "speaker", "default")


def test_every_command_can_be_told_to_write_json(foliot, team, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_LOG_FORMAT", "json")
    assert foliot("get", "agents").code == 0
    monkeypatch.setenv("FOLIOT_LOG_FORMAT", "xml")
    said = foliot("get", "agents")
    assert said.code == 2
    assert "text or json" in said.err
