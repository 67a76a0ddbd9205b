"""MCP tools through the pipeline: one result for each call, whatever the server does."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from foliot.engine.definition.freeze import tool_definition
from foliot.errors import NotFound, Unavailable
from foliot.kernel.messages import Media, Text
from foliot.resources.agreed import Levels
from foliot.resources.validate import validate_document
from foliot.tools.base import Invocation
from foliot.tools.mcp.connections import McpConnections
from foliot.tools.mcp.tool import FindAgreed, McpTool
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.mcp.conftest import agreeing, document, fenced_connections, spec_of


def make_tool(
    connections: McpConnections, tool: str, server: dict[str, Any], agreed: FindAgreed | None = None, **more: Any
) -> McpTool:
    async def find(namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) != ("default", server["metadata"]["name"]):
            raise NotFound("not there")
        return server

    spec = {"type": "mcp", "mcp_server_ref": server["metadata"]["name"], "mcp_tool_name": tool, **more.pop("spec", {})}
    metadata = {"name": f"my-{tool}".replace("_", "-"), **more}
    made, problems = validate_document({"kind": "Tool", "metadata": metadata, "spec": spec})
    assert made is not None, problems
    return McpTool(tool_definition(made), made, connections, find, agreed or agreeing(connections, server))


async def call(tool: McpTool, **arguments: Any):
    name = tool.definition.name
    return await Pipeline([tool]).call(Invocation("run-1", "call-1", name, arguments, "key-1"))


async def test_a_result_of_every_kind_of_content_reaches_the_model(connections):
    result = await call(make_tool(connections, "everything", document("sample", "stdio")))
    assert result.error is None
    assert result.content == (
        Text("words"),
        Media("image/png", data="iVBORyBwaXhlbA=="),
        Text("a note"),
        Media("application/octet-stream", data="iVBORyBwaXhlbA==", name="file:///a.bin"),
        Text("page <https://example.com/page>: a page"),
        Text('{"answer": 42}'),
    )


async def test_what_is_said_in_text_is_not_said_again_as_structure(connections):
    result = await call(make_tool(connections, "add", document("sample", "stdio")), a=20, b=22)
    assert result.content == (Text("42"),)


async def test_an_error_that_the_tool_reports_is_data(connections):
    result = await call(make_tool(connections, "add", document("sample", "stdio")), a="x")
    assert result.error is not None
    assert (result.error.code, result.error.details) == (
        "execution_failed",
        {"mcp_server": "sample", "mcp_tool": "add"},
    )
    assert "valid integer" in result.error.message


async def test_a_call_that_hangs_is_ended_by_the_timeout_of_the_declaration(connections):
    tool = make_tool(connections, "slow", document("sample", "stdio"), spec={"runtime": {"timeout": "500ms"}})
    result = await call(tool, name="n")
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_a_deadline_that_has_passed_keeps_the_call_from_being_made(connections):
    tool = make_tool(connections, "pid", document("rogue"))
    invocation = Invocation("run-1", "call-1", "my-pid", {}, "key-1", deadline=1.0)
    result = await Pipeline([tool]).call(invocation)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_a_server_that_is_not_declared_is_named(connections):
    tool = make_tool(connections, "add", document("sample", "stdio"), spec={"mcp_server_ref": "other"})
    result = await call(tool)
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("unsupported_tool", False)
    assert "'other'" in result.error.message


async def test_a_store_that_does_not_answer_is_worth_another_attempt(connections):
    async def broken(namespace: str, name: str) -> dict[str, Any]:
        raise Unavailable("the database is away")

    made = make_tool(connections, "add", document("sample", "stdio"))
    tool = McpTool(
        made.definition, {"metadata": {}, "spec": {"mcp_server_ref": "s", "mcp_tool_name": "t"}}, connections, broken
    )
    result = await call(tool)
    assert result.error is not None
    assert result.error.retryable


async def test_a_server_of_another_namespace_is_out_of_reach(connections):
    tool = make_tool(connections, "add", document("sample", "stdio"), spec={"mcp_server_ref": "team-b/sample"})
    result = await call(tool)
    assert result.error is not None
    assert result.error.code == "permission_denied"


async def test_a_tool_that_the_server_stopped_offering_is_not_called(connections):
    result = await call(make_tool(connections, "no_such", document("sample", "stdio")))
    assert result.error is not None
    assert result.error.code == "unsupported_tool"


async def test_a_command_that_is_not_allowed_refuses_the_call():
    async with fenced_connections(allowed_commands=[]) as connections:
        result = await call(make_tool(connections, "add", document("sample", "stdio")))
    assert result.error is not None
    assert result.error.code == "permission_denied"


class TestPinning:
    async def test_a_pinned_definition_that_is_still_announced_can_be_called(self, connections):
        assert (await call(make_tool(connections, "echo", document("rogue")), text="hi")).content == (Text("hi"),)

    async def test_a_definition_that_changed_is_quarantined_at_once(self, connections):
        agreed = agreeing(connections, document("rogue"))
        await agreed("default", "rogue", "quiet")
        tool = make_tool(connections, "quiet", document("rogue"), agreed)
        await connections.call(spec_of("rogue"), "echo", {"text": "change"})
        await connections.tools(spec_of("rogue"), refresh=True)
        result = await call(tool)
        assert result.error is not None
        assert (result.error.code, result.error.details["changed"]) == ("permission_denied", "description")
        assert "is quarantined: since it was accepted, the server changed its description" in result.error.message
        assert "`foliot mcp accept rogue quiet -n default` lets it be used again" in result.error.message

    async def test_what_another_process_holds_back_is_refused_though_this_session_saw_no_change(self, connections):
        server = document("rogue")
        tool = make_tool(connections, "echo", server, agreeing(connections, server, held="the server changed it"))
        result = await call(tool, text="hi")
        assert result.error is not None
        assert "is quarantined: the server changed it" in result.error.message

    @pytest.mark.parametrize("damaged", ["", "{", "[]", '{"digest": 1}'])
    async def test_a_pin_that_cannot_be_read_refuses(self, connections, damaged):
        server = document("rogue")
        result = await call(make_tool(connections, "echo", server, agreeing(connections, server, pin=damaged)), text="")
        assert result.error is not None
        assert result.error.code == "permission_denied"

    async def test_without_a_pin_nothing_is_called_and_people_are_told_what_to_do(self, connections):
        async def nobody(namespace: str, server: str, tool: str) -> None:
            return None

        result = await call(make_tool(connections, "echo", document("rogue"), nobody), text="hi")
        assert result.error is not None
        assert (result.error.code, result.error.details["layer"]) == ("permission_denied", "pin")
        assert "nobody has agreed to the definition of 'echo'" in result.error.message
        assert "`foliot mcp sync rogue -n default`" in result.error.message

    async def test_a_tool_that_says_less_than_was_agreed_to_is_refused(self, connections):
        server = document("rogue")
        agreed = agreeing(connections, server, levels=Levels("high", "once", "none", ("delete",)))
        low = {"risk_level": "low", "effect": "read", "operation_classes": ["read"]}
        result = await call(make_tool(connections, "echo", server, agreed, spec=low), text="hi")
        assert result.error is not None
        assert "risk_level high, effect once, operation_classes delete" in result.error.message
        same = {"risk_level": "high", "operation_classes": ["delete"], "runtime": {"isolation_mode": "none"}}
        assert (await call(make_tool(connections, "echo", server, agreed, spec=same), text="hi")).error is None

    async def test_a_tool_that_the_filter_of_its_server_leaves_out_is_not_called(self, connections):
        server = document("rogue", tool_filter={"include": ["pid"]})
        result = await call(make_tool(connections, "echo", server), text="hi")
        assert result.error is not None
        assert "tool_filter" in result.error.message


async def test_without_the_sdk_people_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with McpConnections() as connections:
        with pytest.raises(Unavailable, match="need the MCP SDK") as caught:
            await connections.tools(spec_of("sample", "stdio"))
    assert caught.value.hint == "pip install 'foliot-runtime[mcp]'"
