"""Values of secrets reach the environment of a program only where its own declaration says so, in whatever way it runs.

Servers of MCP have the same tests beside them (tests/tools/mcp/test_fenced.py, test_stdio.py).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.kernel.run.events import ToolFinished
from foliot.settings.settings import load_settings
from tests.runners.kit import program

pytestmark = pytest.mark.fence

STORED = "sesame-stored-4711"
INHERITED = "sesame-inherited-4712"
# Everything that a program can find out about environments, its own and those of whoever started it.
LOOK = """
import glob, os
found = [repr(dict(os.environ)).encode()]
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):
    try:
        found.append(open(path, 'rb').read())
    except OSError:
        pass
whole = b' '.join(found)
seen = whole.count(b'sesa' + b'me-')  # not as one word: it is in the command line of the program itself
"""
TELL = LOOK + "print('seen', seen, sorted(each for each in os.environ if 'SECRET' in each))\n"
NOTHING = "seen 0 []"
VAULT = {
    "network": [{"hosts": ["api.example"]}],
    "secrets": [{"secretRef": "vault", "hosts": ["api.example"], "variable": "VAULT_SECRET"}],
}


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    for name in ("FOLIOT_SECRET_VAULT", "FOLIOT_SECRET_OTHER", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, INHERITED)
    code = f"def look() -> str:\n{indented(LOOK)}    return str(seen)\n"
    (tmp_path / "lookers.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lookers", raising=False)
    settings = load_settings({"home": str(tmp_path / "home"), "store": str(tmp_path / "f.db")}, {})
    async with Runtime(settings=settings) as made:
        secret = {"stringData": {"value": STORED}, "hosts": ["api.example"]}
        await declare(made, "Secret", "vault", secret)
        yield made


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


async def declare(runtime: Runtime, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    await runtime.resources.apply([document])


async def results(runtime: Runtime, agent: Agent) -> list[str]:
    """What the calls of a run brought back."""
    run = await runtime.run(agent, "go")
    facts = await runtime.inside.runs.facts(run.run_id)
    return [event.result.text for _, event in facts if isinstance(event, ToolFinished)]


def caller(*calls: dict[str, Any], tools: list[str], **spec: Any) -> Agent:
    script = [*({"call": each} for each in calls), {"say": "done"}]
    return Agent("clerk", model=ScriptedModel(script), tools=tools, **spec)


SHELL = f'python3 -c "{TELL}"'


async def test_a_command_of_an_agent_finds_no_value_anywhere(runtime: Runtime) -> None:
    (told,) = await results(runtime, caller({"bash": {"command": SHELL}}, tools=["bash"]))

    assert told.startswith(NOTHING)


async def test_a_job_finds_no_value_anywhere(runtime: Runtime) -> None:
    agent = caller(
        {"bash": {"command": f"{SHELL} > told", "background": True}}, {"bash": {"command": WAIT}}, tools=["bash"]
    )

    assert NOTHING in (await results(runtime, agent))[1]


WAIT = "for i in $(seq 600); do grep -q seen told && break; sleep 0.05; done; cat told"


async def test_an_interpreter_finds_no_value_anywhere(runtime: Runtime) -> None:
    (told,) = await results(runtime, caller({"python": {"code": TELL}}, tools=["python"]))

    assert NOTHING in told


async def test_a_program_in_code_mode_finds_no_value_anywhere(runtime: Runtime) -> None:
    agent = caller({"code": {"program": TELL}}, tools=["code", "read_todos"], code={"runs_in": "sandbox"})
    (told,) = await results(runtime, agent)

    assert NOTHING in told


async def test_a_command_line_tool_finds_no_value_anywhere(runtime: Runtime) -> None:
    await declare(runtime, "Tool", "look", {"type": "cli", "cli": {"command": ["python3", "-c", TELL]}})
    (told,) = await results(runtime, caller({"look": {}}, tools=["look"]))

    assert NOTHING in told


async def test_a_fenced_function_finds_no_value_anywhere(runtime: Runtime) -> None:
    isolated = {"runtime": {"isolation_mode": "sandboxed"}}
    await declare(runtime, "Tool", "look", {"type": "function", "function": "lookers:look", **isolated})
    (told,) = await results(runtime, caller({"look": {}}, tools=["look"]))

    assert told == "0"


async def test_a_program_in_the_place_of_a_model_finds_no_value_anywhere(runtime: Runtime) -> None:
    agent = Agent("worker", runner={"command": program(TELL), "protocol": "text"})

    assert NOTHING in (await runtime.run(agent, "go")).output


async def test_the_script_of_a_skill_finds_no_value_anywhere(runtime: Runtime) -> None:
    skill = {"description": "Looks.", "body": "Run look.py.", "files": {"look.py": TELL}}
    await declare(runtime, "Skill", "looking", skill)
    unpack = {"unpack_skill": {"name": "looking"}}
    run = {"bash": {"command": "python3 .agents/skills/looking/look.py"}}

    found = await results(runtime, caller(unpack, run, tools=["bash", "unpack_skill"], skills=["looking"]))

    assert NOTHING in found[1]


async def test_one_tool_that_declares_a_secret_gives_it_to_no_other_and_sees_a_placeholder_itself(
    runtime: Runtime,
) -> None:
    await declare(
        runtime, "Tool", "vaulted", {"type": "cli", "cli": {"command": ["python3", "-c", TELL]}, "sandbox": VAULT}
    )
    agent = caller({"vaulted": {}}, {"bash": {"command": SHELL}}, {"python": {"code": TELL}}, tools=TOOLS)

    vaulted, bash, python = await results(runtime, agent)

    assert "seen 0 ['VAULT_SECRET']" in vaulted
    assert NOTHING in bash
    assert NOTHING in python


TOOLS = ["vaulted", "bash", "python"]


async def test_an_agent_that_declares_a_secret_for_its_commands_gives_it_to_no_declared_tool(runtime: Runtime) -> None:
    await declare(runtime, "Tool", "look", {"type": "cli", "cli": {"command": ["python3", "-c", TELL]}})
    agent = caller({"bash": {"command": SHELL}}, {"look": {}}, tools=["bash", "look"], sandbox=VAULT)

    bash, look = await results(runtime, agent)

    assert "seen 0 ['VAULT_SECRET']" in bash
    assert NOTHING in look


async def test_a_secret_in_clear_is_no_field_of_an_environment(runtime: Runtime) -> None:
    """A variable is what is written there: nothing that looks like a reference is resolved in it."""
    env = {"A": "${FOLIOT_SECRET_VAULT}", "B": "secretRef:vault", "C": "vault:value"}
    agent = caller({"bash": {"command": SHELL + "; echo $A $B $C"}}, tools=["bash"], sandbox={"env": env})

    (told,) = await results(runtime, agent)

    assert NOTHING in told
    assert "${FOLIOT_SECRET_VAULT} secretRef:vault vault:value" in told


async def test_what_is_declared_as_a_variable_is_found_so_the_search_itself_works(runtime: Runtime) -> None:
    agent = caller({"bash": {"command": SHELL}}, tools=["bash"], sandbox={"env": {"A": "sesame-declared"}})

    (told,) = await results(runtime, agent)

    assert not told.startswith("seen 0")
