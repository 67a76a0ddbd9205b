"""A tool runs in the isolation it declares, or it does not run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.errors import Conflict, InvalidInput
from foliot.tools.base import Invocation, OnOutput, Tool, ToolDefinition, ToolIsolationMissing
from foliot.tools.contract import ToolResponse
from foliot.tools.isolation import MODES, IsolatedCall, Isolation, Isolations
from foliot.tools.pipeline.pipeline import Pipeline

CALL = Invocation("run-1", "c1", "shell", {"command": "ls"}, "key")


class Box:
    """An isolation that notes what it was asked to contain."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.closed = False

    def check(self, definition: ToolDefinition) -> None:
        pass

    async def execute(self, call: IsolatedCall, *, on_output: OnOutput | None = None) -> ToolResponse:
        return ToolResponse(status="ok", output={"result": self.mode})

    async def close(self) -> None:
        self.closed = True


class Boxed:
    def __init__(self, definition: ToolDefinition, box: Isolation) -> None:
        self.definition = definition
        self.isolation = box.mode

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        return f"ran {self.isolation}"


class Plain:
    isolation = "none"

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        return "ran none"


def tool(mode: str, isolations: Isolations) -> Tool:
    definition = ToolDefinition("shell", isolation=mode)
    return isolations.contained(definition, lambda: Plain(definition))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "none"])
async def test_without_a_sandbox_an_isolated_tool_refuses(mode: str) -> None:
    refused = tool(mode, Isolations())
    with pytest.raises(ToolIsolationMissing, match="offers") as caught:
        await refused.invoke(CALL)
    assert caught.value.before_effect
    result = await Pipeline([refused]).call(CALL)
    assert result.error is not None
    assert result.error.code == "isolation_unavailable"


@given(
    declared=st.sampled_from(MODES),
    registered=st.sets(st.sampled_from([mode for mode in MODES if mode != "none"])),
    swapped=st.sampled_from(MODES),
)
async def test_no_set_of_sandboxes_lets_a_tool_run_in_another_than_it_declares(
    declared: str, registered: set[str], swapped: str
) -> None:
    def adapter(definition: ToolDefinition, box: Isolation) -> Tool:
        """May build something else than what its mode promises."""
        return Boxed(definition, Box(swapped) if box.mode == declared else box)

    isolations = Isolations()
    for mode in registered:
        isolations.register(Box(mode), adapter)
    result = await Pipeline([tool(declared, isolations)]).call(CALL)
    if declared == "none":
        assert result.text == "ran none"
    elif declared in registered and swapped == declared:
        assert result.text == f"ran {declared}"
    else:
        assert result.error is not None
        assert result.error.code == "isolation_unavailable"


async def test_a_plain_backend_is_never_built_for_a_tool_that_declares_isolation() -> None:
    def never() -> Tool:
        raise AssertionError("the plain backend was built")

    with pytest.raises(ToolIsolationMissing):
        await Isolations().contained(ToolDefinition("shell", isolation="sandboxed"), never).invoke(CALL)


async def test_modes_are_registered_once_and_only_those_that_tools_can_declare() -> None:
    isolations, box = Isolations(), Box("wasm")
    isolations.register(box, Boxed)
    assert isolations.offered == ("none", "wasm")
    with pytest.raises(Conflict):
        isolations.register(Box("wasm"), Boxed)
    for wrong in ("none", "jail", ""):
        with pytest.raises(InvalidInput):
            isolations.register(Box(wrong), Boxed)
    await isolations.close()
    assert box.closed
