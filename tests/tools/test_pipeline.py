"""Every call passes the pipeline and gets exactly one result, whatever the tool does."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from foliot.errors import Conflict
from foliot.kernel.messages import Media, Text, ToolResult
from foliot.tools.base import Invocation, ToolDenied
from foliot.tools.function import tool
from foliot.tools.pipeline import Pipeline


def call(name: str, **arguments: object) -> Invocation:
    return Invocation(run_id="r1", call_id="c1", tool=name, arguments=dict(arguments), idempotency_key="r1/c1")


async def result_of(function, **arguments: object) -> ToolResult:
    wrapped = function if hasattr(function, "definition") else tool(function)
    return await Pipeline([wrapped]).call(call(wrapped.definition.name, **arguments))


class Answer(BaseModel):
    n: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain", (Text("plain"),)),
        ({"a": [1, 2.5, None]}, (Text('{"a":[1,2.5,null]}'),)),
        (None, (Text("null"),)),
        (Answer(n=3), (Text('{"n":3}'),)),
        ([Text("see"), Media("image/png", data="aGk=")], (Text("see"), Media("image/png", data="aGk="))),
        ({"a"}, (Text('["a"]'),)),
        ([], (Text("[]"),)),
    ],
)
async def test_what_a_tool_returns_becomes_content(value, content) -> None:
    async def f():
        return value

    assert await result_of(f) == ToolResult("c1", "f", content)


async def test_wrong_arguments_never_reach_the_function_and_every_fault_is_named() -> None:
    ran = False

    async def f(n: int, name: str) -> None:
        nonlocal ran
        ran = True

    result = await result_of(f, n="three", nam="x")

    assert not ran
    assert result.error is not None
    assert (result.error.code, result.error.kind) == ("invalid_input", "invalid_arguments")
    assert "n:" in result.error.message
    assert "name" in result.error.message


async def test_an_exception_is_data_for_the_model() -> None:
    async def f() -> None:
        raise ZeroDivisionError("nothing to share")

    result = await result_of(f)

    assert result.error is not None
    assert result.error.code == "execution_failed"
    assert result.text == "Error (execution_failed): ZeroDivisionError: nothing to share"


async def test_a_denial_keeps_its_code_and_is_not_retryable() -> None:
    async def f() -> None:
        raise ToolDenied("not for you")

    result = await result_of(f)

    assert result.error is not None
    assert (result.error.code, result.error.reason, result.error.retryable) == (
        "permission_denied",
        "tool_permission_denied",
        False,
    )


async def test_a_tool_that_hangs_is_stopped() -> None:
    stopped = asyncio.Event()

    @tool(timeout=0.01)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    result = await result_of(hang)

    assert stopped.is_set()
    assert result.error is not None
    assert result.error.kind == "timeout"


async def test_the_tools_own_timeout_error_is_not_mistaken_for_ours() -> None:
    async def f() -> None:
        raise TimeoutError("upstream")

    result = await result_of(f)

    assert result.error is not None
    assert result.error.code == "execution_failed"


async def test_what_cannot_be_written_as_json_is_a_failure_not_a_crash() -> None:
    async def f() -> object:
        return object()

    result = await result_of(f)

    assert result.error is not None
    assert "not JSON" in result.error.message


async def test_an_unknown_tool_is_answered_with_the_names_that_exist() -> None:
    @tool
    async def known() -> None: ...

    result = await Pipeline([known]).call(call("unknown"))

    assert result.error is not None
    assert result.error.kind == "unknown_tool"
    assert "known" in result.error.message


async def test_cancelling_a_call_is_not_swallowed() -> None:
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(result_of(hang))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_two_tools_cannot_share_a_name() -> None:
    @tool(name="same")
    async def one() -> None: ...

    @tool(name="same")
    async def two() -> None: ...

    with pytest.raises(Conflict, match="same"):
        Pipeline([one, two])


async def test_admitting_a_call_has_no_effect_until_it_is_run() -> None:
    ran: list[int] = []

    @tool
    async def f(n: int) -> None:
        ran.append(n)

    admitted = await Pipeline([f]).admit(call("f", n=1))

    assert not isinstance(admitted, ToolResult)
    assert ran == []
    await admitted.run()
    assert ran == [1]


