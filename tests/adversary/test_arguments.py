"""Arguments that two readers could read differently: what is judged, hashed, shown and recorded is what the tool gets.

Texts are made by Hypothesis, with every trick that a parser may fall for; a strict reader written here says what each
of them means, or that it means nothing. The runtime must agree with it on every way in.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from aiohttp import web
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.catalog.apply import apply_documents
from foliot.errors import InvalidInput
from foliot.kernel.arguments import DEEPEST, arguments_digest, canonical, read_arguments
from foliot.resources.reader import parse_text
from foliot.runtime.tools import ToolCaller
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.tools.backends.http import ExternalTool, HttpTool
from foliot.tools.base import Invocation
from foliot.tools.governance.cel import Expression
from foliot.tools.governance.rules import FixedRules, Permission, RuleCondition, Rules
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.governed import FakeTime
from tests.tools.governed import call as invocation
from tests.tools.web_service import call as web_call
from tests.tools.web_service import definition as web_definition
from tests.tools.web_service import serving, way_out

LONG = bool(os.environ.get("FOLIOT_CHAOS"))
SEED = random.SystemRandom().getrandbits(32) if LONG else 20261116
EXAMPLES = 2000 if LONG else 60


# --- a strict reader, independent of the one that is tested ------------------------------------------------------


class Refused(Exception):
    pass


def meaning(text: str) -> dict[str, Any] | None:
    """What a text means to everybody, or None when readers could differ."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise Refused("repeated")
        return dict(pairs)

    def whole(number: str) -> int:
        if len(number) > 20 or not -(2**63) <= int(number) < 2**63:
            raise Refused("huge")
        return int(number)

    def real(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise Refused("infinite")
        return value

    def nothing(word: str) -> Any:
        raise Refused(word)

    try:
        value = json.loads(text, object_pairs_hook=once, parse_int=whole, parse_float=real, parse_constant=nothing)
        plain(value, 0)
    except (Refused, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def plain(value: Any, depth: int) -> None:
    if isinstance(value, str) and ("\0" in value or value != value.encode("utf-8", "replace").decode()):
        raise Refused("text")
    if isinstance(value, dict | list) and depth >= DEEPEST:
        raise Refused("deep")
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        plain(item, depth + 1)


# --- texts that try to be read twice -----------------------------------------------------------------------------

NUMBERS = ["0", "-0", "-0.0", "1e400", "-1e400", "1e-400", "1E5", "12e3", "9223372036854775807", "9223372036854775808"]
NUMBERS += ["-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890", "9" * 400, "9" * 5000]
NUMBERS += [
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "1.",
    "0.1000000000000000055511151231257827",
    "5e-324",
    "9007199254740993",
]
CHARACTERS = [
    "a",
    "b",
    "é",
    "\\u0061",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\ud83d\\ude00",
    "😀",
    "\\u2028",
    "\x00",
    "\\n",
]
CHARACTERS += ['\\"', '\\":', ":", "\\/", "\x7f", "\\u202e", "{", "}", "[", ",", "\ufeff"]
texts = st.lists(st.sampled_from(CHARACTERS), max_size=4).map(lambda parts: f'"{"".join(parts)}"')
names = st.one_of(st.sampled_from(['"v"', '"\\u0076"', '"a"', '"a\\u0000b"', '"\\u0061"', '"A"']), texts)
space = st.sampled_from(["", " ", "\n", "\t"])
scalars = st.one_of(st.sampled_from(NUMBERS), texts, st.sampled_from(["true", "false", "null"]))


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.builds(lambda name, gap, value: f"{name}{gap}:{gap}{value}", names, space, inner)
    return st.lists(member, max_size=3).map(lambda members: f"{{{','.join(members)}}}")


values = st.recursive(
    scalars,
    lambda inner: st.one_of(objects(inner), st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")),
    max_leaves=6,
)
deep = st.integers(1, 1200).map(lambda levels: "[" * levels + "]" * levels)
arguments = st.one_of(
    values.map(lambda value: f'{{"v": {value}}}'),
    st.builds(lambda one, other: f'{{"v": {one}, "v": {other}}}', values, values),
    st.builds(lambda one, other: f'{{"v": {one}, "\\u0076" : {other}}}', values, values),
    deep.map(lambda value: f'{{"v": {value}}}'),
)
hostile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def literal(value: Any) -> str:
    """The value as an expression of CEL, written without any escape that the value itself has."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(name)}: {literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value) if isinstance(value, float) else str(value)


def same(one: Any, other: Any) -> bool:
    """Byte for byte: `1` is not `1.0`, and `0.0` not `-0.0`."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


# --- every way in ------------------------------------------------------------------------------------------------

WORLD = """\
kind: Tool
metadata: {name: take}
spec: {type: function, function: "adversary_tools:take", effect: once, input_schema: {type: object}}
"""
MODULE = """\
from typing import Any

received = []

def take(v: Any = None) -> str:
    received.append({"v": v})
    return "taken"
"""


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    (tmp_path / "adversary_tools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("adversary_tools", None)
    async with Runtime(settings=load_settings({"home": str(tmp_path)}, {})) as runtime:
        bundle = parse_text(WORLD, "world.yaml")
        bundle.raise_for_errors()
        await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])
        yield runtime
    sys.modules.pop("adversary_tools", None)


@pytest.fixture
async def http(runtime: Runtime, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(runtime, settings=load_settings({"home": str(tmp_path)}, {}), auth=Anonymous())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def taken() -> list[dict[str, Any]]:
    """What the tool got since the last time."""
    import adversary_tools  # pyright: ignore[reportMissingImports] - made by the fixture

    received = list(adversary_tools.received)
    adversary_tools.received.clear()
    return received


def calling(text: str) -> Agent:
    @tool(effect="once")
    def take(v: Any = None) -> str:
        import adversary_tools  # pyright: ignore[reportMissingImports] - made by the fixture

        return adversary_tools.take(v)

    return Agent("desk", model=ScriptedModel([{"call": {"take": text}}, {"say": "{last_result}"}]), tools=[take])


@hostile
@seed(SEED)
@example(text='{"v": ' + "[" * 600 + "]" * 600 + "}")
@given(text=arguments)
async def test_a_model_s_call_is_run_as_it_was_judged_or_not_at_all(runtime: Runtime, text: str) -> None:
    said = await runtime.run(calling(text), "go", check=False)

    expected = meaning(text)
    assert [same(each, expected) for each in taken()] == ([True] if expected is not None else []), (text, said.output)
    if expected is None:
        assert said.phase == "succeeded", "the model is told, and may put it right"
        assert "Error (invalid_input)" in said.output


@pytest.mark.parametrize(
    "text", ['{"v": 1, "v": 2}', '{"v": {"a": 1, "\\u0061": 2}}', '{"v": "a\\u0000b"}', '{"w": 1}']
)
async def test_every_refusal_of_a_model_s_arguments_is_in_the_audit_log(runtime: Runtime, text: str) -> None:
    said = await runtime.run(calling(text), "go", check=False)
    await runtime.inside.audit.flush()

    assert taken() == []
    kept = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(run_id=said.run_id))
    assert [(each.body["moment"], each.body["decision"]["layer"]) for each in kept] == [("refused", "arguments")]


@hostile
@seed(SEED)
@given(text=arguments)
async def test_a_person_s_call_over_http_is_run_as_it_was_judged_or_not_at_all(
    http: httpx.AsyncClient, runtime: Runtime, text: str
) -> None:
    body = f'{{"arguments": {text}}}'.encode("utf-8", "surrogatepass")
    answer = await http.post("/v1/tools/take/call", content=body)

    expected = meaning(text)
    assert [same(each, expected) for each in taken()] == ([True] if expected is not None else []), (text, answer.text)
    assert answer.status_code < 500, answer.text
    if expected is None and answer.status_code == 200:
        assert answer.json()["result"]["error"]["code"] == "invalid_input"
    await runtime.inside.audit.flush()


@hostile
@seed(SEED)
@given(text=arguments)
async def test_cel_sees_what_is_digested_and_what_every_backend_gets(text: str) -> None:
    expected = meaning(text)
    read, problem = read_arguments(text)
    assert (read is None) == (expected is None), (text, problem)
    if expected is None or read is None:
        assert problem
        assert "\0" not in problem
        return
    got: list[dict[str, Any]] = []

    @tool(effect="once")
    def take(call: Invocation, v: Any = None) -> str:
        got.append(call.arguments)
        return "taken"

    when = f"args == {literal(expected)}"
    if len(when) > 4000 or expected.get("v") != expected.get("v"):
        return
    permission = Permission("only", "take", conditions=(RuleCondition(Expression(when), "allow"),))
    rules = FixedRules(Rules("default", permissions={"take": (permission,)}))
    result = await Pipeline([take], PipelineParts(rules=rules, clock=FakeTime())).call(invocation("take", read))

    assert result.error is None, (text, result.error)
    assert same(got[0], expected)
    assert arguments_digest(got[0]) == arguments_digest(read)
    assert json.loads(canonical(read)) == expected


@settings(parent=hostile, max_examples=200 if LONG else 15)
@seed(SEED + 1)
@given(text=arguments)
async def test_services_elsewhere_get_what_was_judged(text: str) -> None:
    read, _ = read_arguments(text)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"tool_contract_version": "v1", "status": "ok", "output": {"result": "done"}})

    async with serving(answer) as service, way_out() as out:
        elsewhere = [
            ExternalTool(web_definition(service.url, type="external"), out.client, out.auth),
            HttpTool(web_definition(service.url), out.client, out.auth),
        ]
        for each in elsewhere:
            given = json.loads(text) if read is None and _is_object(text) else read or {}
            result = await Pipeline([each]).call(web_call(given))
            assert (result.error is None) or read is None, result.error
        if read is None:
            return
        envelope, posted = (json.loads(body) for body in service.bodies)
    assert same(envelope["input"] if read else {}, read)
    assert same(json.loads(envelope["input_raw"]), read)
    assert same(posted, read)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


PYTHON_VALUES = [
    math.nan,
    math.inf,
    "a\0b",
    "\ud800",
    2**63,
    -(2**63) - 1,
    {1: 2},
    {"a\0": 1},
    (1, 2),
    {1, 2},
    b"x",
    1j,
]
PYTHON_VALUES += [{"k" * 2000: 1}, [[{"x": [math.nan]}]], object()]


@pytest.mark.parametrize("value", PYTHON_VALUES, ids=lambda value: ascii(value)[:20])
async def test_values_that_json_does_not_have_are_refused_from_python(runtime: Runtime, value: Any) -> None:
    result = await runtime.inside.tools.call("take", {"v": value}, ToolCaller("default"))

    assert taken() == []
    assert result.error is not None
    assert result.error.code == "invalid_input"
    assert "v" in result.error.message


@pytest.mark.parametrize("value", PYTHON_VALUES[:6], ids=lambda value: ascii(value)[:20])
async def test_edited_arguments_are_held_to_the_same_form(tmp_path: Path, value: Any) -> None:
    rule = {
        "kind": "ToolPermission",
        "metadata": {"name": "take"},
        "spec": {"operation_rules": [{"operation_class": "*", "verdict": "approval_required"}]},
    }
    got: list[Any] = []

    @tool(effect="once")
    def take(v: Any = None) -> str:
        got.append(v)
        return "taken"

    agent = Agent("desk", model=ScriptedModel([{"call": {"take": {"v": 1}}}, {"say": "{last_result}"}]), tools=[take])
    async with Runtime(tmp_path / "foliot.db") as runtime:
        bundle = parse_text(json.dumps(rule), "rule.json")
        await apply_documents(runtime.inside.resources, [item.document for item in bundle.items], allow_missing=True)
        await runtime.run(agent, "go", run_id="r1", check=False)
        (document,) = [each async for each in runtime.inside.approvals.list(run="r1")]
        name = document["metadata"]["name"]
        with pytest.raises(InvalidInput, match="judged"):
            await runtime.inside.approvals.decide(name, "edit", by="ann", arguments={"v": value})
        await runtime.inside.approvals.decide(name, "edit", by="ann", arguments={"v": [1.0, -0.0, "é"]})
        done = await runtime.resume("r1", agent=agent)
    assert done.phase == "succeeded"
    assert same(got, [[1.0, -0.0, "é"]])


async def test_a_body_that_says_a_name_twice_is_refused_by_every_route(http: httpx.AsyncClient) -> None:
    twice = b'{"arguments": {}, "agent": "", "agent": "clerk"}'
    answer = await http.post("/v1/tools/take/call", content=twice)
    assert (answer.status_code, taken()) == (400, [])
    assert "agent" in answer.text

    answer = await http.post("/v1/chat/completions", content=b'{"model": "a", "messages": [], "model": "b"}')
    assert answer.status_code == 400
    answer = await http.post("/v1/tools", content=b'{"metadata": {"name": "x"}, "spec": {}, "spec": {"type": "http"}}')
    assert answer.status_code in (400, 422)
    message = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "method": "tools/call", "params": {"name": "take"}}'
    answer = await http.post("/mcp", content=message, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
