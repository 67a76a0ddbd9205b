"""Command line tools: arguments that stay arguments, a fence around each call, clear failures."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from foliot.engine.definition.freeze import tool_definition, tool_rule
from foliot.engine.definition.grants import OperatorGrants
from foliot.errors import Denied, InvalidInput
from foliot.resources.command_template import filled_command, wrong_elements
from foliot.resources.validate import validate_document
from foliot.sandbox.process import ProcessSandbox
from foliot.tools.backends.cli import CliFence, CliTool
from foliot.tools.base import Caller, Invocation, ToolArgumentsInvalid, ToolError, ToolPolicyInvalid
from foliot.tools.fences import Fences
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.processes import Processes, forget, note_for
from foliot.tools.workspaces import SharedWorkspace

ROOT = Path(__file__).parents[3]


def declared(cli: dict | None, **spec):
    spec = {"type": "cli", **spec} | ({"cli": cli} if cli is not None else {})
    return validate_document({"kind": "Tool", "metadata": {"name": "t"}, "spec": spec})


def document(cli: dict | None, **spec):
    found, problems = declared(cli, **spec)
    assert found is not None, problems
    return found


def call(**arguments) -> Invocation:
    return Invocation("run-1", "c1", "t", arguments, "key-1", Caller("default", "caller"))


# --- templates ---------------------------------------------------------------------------------------------------


def test_each_element_is_one_argument() -> None:
    command = ["grep", "-n", "--max-count={most}", "--", "{pattern}", "in {file}.txt"]
    given = {"pattern": "-e $(id); `id` 'x' \"y\"\n*", "file": "a b", "most": 3}
    assert filled_command(command, given) == [
        "grep",
        "-n",
        "--max-count=3",
        "--",
        "-e $(id); `id` 'x' \"y\"\n*",
        "in a b.txt",
    ]
    assert "--max-count" not in str(filled_command(command, {"pattern": "x", "file": "y"}))
    assert filled_command(["p", "{a}", "{b}", "{c}"], {"a": True, "b": [1, "x"], "c": 1.5}) == [
        "p",
        "true",
        '[1,"x"]',
        "1.5",
    ]


@given(st.text(), st.text())
def test_no_value_becomes_an_option_or_another_argument(one: str, two: str) -> None:
    command = ["p", "{one}", "--name={two}", "{one}{two}", "--", "{two}"]
    try:
        words = filled_command(command, {"one": one, "two": two})
    except InvalidInput:
        assert "\0" in one + two or f"{one}{two}".startswith("-")
        return
    assert len(words) == len(command)
    before = words[1 : words.index("--", 1)]
    assert [word for word in before if word.startswith("-")] == [f"--name={two}"]
    assert words[-1] == two


def test_doubled_braces_are_text_and_whoever_needs_them_is_told() -> None:
    command = ["curl", "-w", "%{{http_code}}", "--", "{url}"]
    assert filled_command(command, {"url": "u"}) == ["curl", "-w", "%{http_code}", "--", "u"]
    assert list(wrong_elements(["sh", "-c", "curl -w '%{{http_code}}' \"$1\"", "sh", "{url}"])) == []
    ((_, why),) = wrong_elements(["sh", "-c", "curl -w '%{http_code}'"])
    assert "write {{http_code}} for the text {http_code}" in why


def test_what_is_missing_or_would_be_an_option_is_refused() -> None:
    for value, said in (("-rf", "begins with a dash"), (None, "is missing"), ("a\0b", "NUL")):
        with pytest.raises(InvalidInput, match=said):
            filled_command(["rm", "{path}"], {"path": value})


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (["{program}", "x"], [0]),
        (["ls", "-{flag}"], [1]),
        (["ls", "--{flag}"], [1]),
        (["ls", "--{flag}=x"], [1]),
        (["ls", "-l{flag}"], [1]),
        (["ls", "--width={n}", "-l", "--", "-{x}"], []),
        (["sh", "-c", "echo {x}"], [2]),
        (["/bin/bash", "-lc", "{x}"], [2]),
        (["python3", "-c", "print({x})"], [2]),
        (["sh", "-c", 'echo "$1"', "sh", "{x}"], []),
        (["echo", "a\0b"], [1]),
    ],
)
def test_templates_that_could_be_injected_are_not_accepted(command: list[str], wrong: list[int]) -> None:
    assert [place for place, _ in wrong_elements(command)] == wrong


# --- declared ----------------------------------------------------------------------------------------------------


def test_a_cli_tool_is_always_sandboxed() -> None:
    assert document({"command": ["true"]})["spec"]["runtime"]["isolation_mode"] == "sandboxed"


@pytest.mark.parametrize(
    ("cli", "spec", "said"),
    [
        (None, {}, "spec.cli is required when spec.type=cli"),
        ({"command": ["true"]}, {"type": "http"}, "spec.cli is only for spec.type=cli"),
        ({"command": []}, {}, "spec.cli.command is required"),
        ({"command": ["true"]}, {"runtime": {"isolation_mode": "none"}}, "always contained"),
        ({"command": ["ls", "-{x}"]}, {}, "only as --name="),
        ({"command": ["ls", "{y}"]}, {"input_schema": {"type": "object", "properties": {"x": {}}}}, "argument 'y'"),
        ({"command": ["ls"], "env": {"A B": "x"}}, {}, "not the name of a variable"),
    ],
)
def test_what_makes_no_sense_is_said(cli, spec, said: str) -> None:
    found, problems = declared(cli, **spec)
    assert found is None
    assert said in " ".join(each.message for each in problems)


@pytest.mark.parametrize("access", ["none", "read_only", "read_write"])
def test_a_tool_that_runs_on_files_is_run_again_however_often_it_succeeded(access: str) -> None:
    on_files = {"sandbox": {"workspace": access}}
    function = {"type": "function", "function": "m:f", "runtime": {"isolation_mode": "sandboxed"}}
    for found in (
        document({"command": ["true"], "workspace": access}),
        document({"command": ["true"]}, **on_files),
        document(None, **function, **on_files),
    ):
        assert tool_rule(tool_definition(found)).repeats is (access != "none")


def test_a_command_of_others_than_the_operator_needs_a_grant() -> None:
    theirs = document({"command": ["grep", "-n", "--", "{pattern}"]})
    theirs["metadata"] |= {"uid": "u", "declaredBy": {"name": "ada"}}
    for grants in ((), ("grep",), ("grep -n -- x",)):
        with pytest.raises(Denied, match="may not be started"):
            OperatorGrants(mcp_commands=grants).check_program(theirs)
    for grants in (("grep *",), ("grep -n -- {pattern}",)):
        OperatorGrants(mcp_commands=grants).check_program(theirs)
    OperatorGrants().check_program(document({"command": ["grep"]}))


# --- called ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def run(tmp_path):
    sandbox = ProcessSandbox()
    fence = CliFence(lambda: Fences(lambda backend: sandbox, workspaces=SharedWorkspace(tmp_path, "default")))

    async def run(cli: dict, spec: dict | None = None, **arguments):
        tool = CliTool(tool_definition(document(cli, **(spec or {}))), fence)
        return await tool.invoke(call(**arguments))

    yield run
    await sandbox.close()


@pytest.mark.fence
async def test_a_program_answers_with_text_or_json(run) -> None:
    text = "$(id) ; `id` \"'\n-x"
    assert await run({"command": ["printf", "%s|", "--", "{a}", "{b}"]}, a=text, b="--help") == f"--|{text}|--help|"
    assert await run({"command": ["cat"], "stdin": "json", "output": "json"}, a=1, b=["x"]) == {"a": 1, "b": ["x"]}
    assert await run({"command": ["cat"], "stdin": "Dear {name},\n{{x}}"}, name="Ada", x=1) == "Dear Ada,\n{1}"
    assert "COLOUR=red\n" in await run({"command": ["env"], "env": {"COLOUR": "red"}})


@pytest.mark.fence
async def test_nothing_of_the_host_is_inside(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CLI_CANARY", "canary-value")
    assert "canary" not in await run({"command": ["env"]})
    (tmp_path / "note").write_text("hello")
    with pytest.raises(ToolError, match="No such file"):
        await run({"command": ["cat", "{path}"]}, path=str(tmp_path / "note"))
    assert await run({"command": ["cat", "note"], "workspace": "read_only"}) == "hello"
    with pytest.raises(ToolError, match="Read-only"):
        await run({"command": ["touch", "new"], "workspace": "read_only"})
    await run({"command": ["touch", "new"], "workspace": "read_write"})
    assert (tmp_path / "new").exists()


@pytest.mark.fence
async def test_what_the_sandbox_starts_is_not_taken_for_what_the_call_left(run) -> None:
    noted = list[Processes]()
    token = note_for(lambda: noted.append(each := Processes()) or each)
    try:
        assert await run({"command": ["echo", "done"]}) == "done\n"
    finally:
        forget(token)
    assert noted == []


@pytest.mark.fence
async def test_failures_say_what_happened(run) -> None:
    with pytest.raises(ToolError, match=r"(?s)sh ended with the code 3:\nlast words") as failed:
        await run({"command": ["sh", "-c", "echo out; echo last words >&2; exit 3"]})
    assert (failed.value.code, failed.value.details["exit_code"]) == ("execution_failed", 3)
    with pytest.raises(ToolError, match="did not print JSON"):
        await run({"command": ["echo", "{}x"], "output": "json"})
    with pytest.raises(ToolError, match="cannot be started") as missing:
        await run({"command": ["no-such-program"]})
    assert missing.value.before_effect
    with pytest.raises(ToolArgumentsInvalid, match="begins with a dash"):
        await run({"command": ["cat", "{path}"]}, path="-x")
    with pytest.raises(ToolPolicyInvalid, match="no credential"):
        await run({"command": ["true"]}, {"auth": {"profile": "bearer", "secretRef": "s"}})


@pytest.mark.fence
async def test_a_call_that_takes_too_long_is_ended(tmp_path) -> None:
    sandbox = ProcessSandbox()
    definition = tool_definition(document({"command": ["sleep", "987653"]}, runtime={"timeout": "500ms"}))
    tool = CliTool(definition, CliFence(lambda: Fences(lambda backend: sandbox)))
    result = await (await Pipeline([tool]).admit(call())).run()
    assert (result.error.kind, result.error.unknown) == ("timeout", "timeout")
    lines = await asyncio.to_thread(lambda: [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline")])
    assert not any(b"987653" in line for line in lines)
    await sandbox.close()


def test_the_examples_of_the_page_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/sandbox.md").read_text(), re.DOTALL)
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    assert {"cli", "function"} <= {each["spec"].get("type") for each in documents}
    for each in documents:
        found, problems = validate_document(each)
        assert found is not None, problems
        if found["kind"] == "Tool":
            assert found["spec"]["runtime"]["isolation_mode"] in ("sandboxed", "container", "wasm")
