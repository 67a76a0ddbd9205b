"""Numbers and lengths of time have bounds, wherever they are given: refused with the field and the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, ScriptedModel
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.tools.base import ToolDefinition
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import normalise


def document(kind: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x"}, "spec": spec}


DECLARED = [
    (document("Task", agent="a", retry={"max_attempts": 1_000_000}), "retry.max_attempts", "1000"),
    (document("Task", agent="a", retry={"max_attempts": -1}), "retry.max_attempts", "0"),
    (document("Task", agent="a", retry={"backoff": "-5s"}), "retry.backoff", "negative"),
    (document("Task", agent="a", message_retry={"max_attempts": 1_000_000}), "message_retry.max_attempts", "1000"),
    (document("Task", agent="a", timeout="200000h"), "timeout", "3660d"),
    (document("Task", agent="a", max_turns=10**30), "max_turns", "9007199254740991"),
    (
        document("Tool", type="http", endpoint="https://example.com", runtime={"retry": {"max_attempts": 10**6}}),
        "runtime.retry.max_attempts",
        "1000",
    ),
]


@pytest.mark.parametrize(
    ("declared", "field", "limit"), DECLARED, ids=[f"{d['kind']}-{f}-{i}" for i, (d, f, _) in enumerate(DECLARED)]
)
def test_a_declared_number_out_of_bounds_is_refused(declared: dict[str, Any], field: str, limit: str) -> None:
    _, problems = validate_document(declared)
    said = [(str(problem), problem) for problem in problems]
    assert any(field in f"{text} {problem.path}" and limit in f"{text} {problem.expected}" for text, problem in said), (
        said
    )


def ordered(**given: Any) -> Callable[[], object]:
    return lambda: normalise(Command("agent", "a", message="x", **given))


def tool_of(retry: RetryPolicy) -> Callable[[], object]:
    return lambda: ToolDefinition("f", retry=retry)


GIVEN: list[tuple[Callable[[], object], str]] = [
    (ordered(retry=RetryPolicy(1_000_000)), "retry.max_attempts must be >= 1 and <= 1000"),
    (ordered(retry=RetryPolicy(2, -1.0)), "retry.backoff must be >= 0"),
    (ordered(retry=RetryPolicy(2, 1.0, float("nan"))), "retry.max_backoff must be >= 0"),
    (ordered(timeout=1e12), "timeout must be <="),
    (ordered(max_turns=10**9), "max_turns must be <= 100000"),
    (tool_of(RetryPolicy(max_attempts=1_000_000)), "retry.max_attempts must be from 1 to 1000"),
    (tool_of(RetryPolicy(max_attempts=0)), "retry.max_attempts must be from 1"),
    (tool_of(RetryPolicy(2, -1.0)), "retry.backoff must be from 0"),
    (lambda: ToolDefinition("f", timeout=float("inf")), "tool 'f': timeout must be from 0"),
    (lambda: ToolDefinition("f", attempt_timeout=-1.0), "tool 'f': attempt_timeout must be from 0"),
]


@pytest.mark.parametrize(("give", "refusal"), GIVEN, ids=[refusal for _, refusal in GIVEN])
def test_a_number_out_of_bounds_is_refused_in_python(give: Callable[[], object], refusal: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        give()
    assert refusal in refused.value.message


async def test_the_same_run_id_with_another_input_is_a_conflict(tmp_path: Path) -> None:
    clerk = Agent("clerk", model=ScriptedModel([{"say": "one"}, {"say": "two"}]))
    async with Runtime(tmp_path / "foliot.db") as runtime:
        first = await runtime.run(clerk, "go", run_id="r1")
        again = await runtime.run(clerk, "go", run_id="r1")
        assert (first.output, again.output) == ("one", "one")
        with pytest.raises(Conflict) as taken:
            await runtime.run(clerk, "go elsewhere", run_id="r1")
        assert taken.value.message == "run r1 began with another input"
        with pytest.raises(Conflict):
            await runtime.run(Agent("cook", model=ScriptedModel([{"say": "x"}])), "go", run_id="r1")
        with pytest.raises(Conflict):
            async for _ in runtime.stream(clerk, "go elsewhere", run_id="r1"):
                pass
