"""Code mode: a program in the place of a model, whose calls are those of its agent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.common.cancellation import stop_tasks
from foliot.engine.definition.backends import can_fence
from foliot.kernel.run.events import RunCreated, ToolFinished
from foliot.kernel.run.spec import ToolRule
from foliot.models.routing.pricing import Pricing
from foliot.resources.validate import validate_document
from foliot.runtime.delegation import MAX_DEPTH
from foliot.store.base import Put
from tests.loop_watch import watched_steps

pytest.importorskip("pydantic_monty")

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.services)]


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(effect="read")
def order(id: str) -> dict[str, Any]:
    """Looks an order up."""
    if id == "none":
        raise KeyError("no such order")
    return {"id": id, "lines": [{"price": 3}, {"price": 4}]}


def coder(program: str, *tools: Any, **spec: Any) -> Agent:
    turns = [{"call": {"code": {"program": program}}}, {"say": "{last_result}"}]
    if runs_in := spec.pop("runs_in", ""):
        spec["code"] = {"runs_in": runs_in, **spec.get("code", {})}
    return Agent("coder", model=ScriptedModel(turns), tools=(*(tools or (add, order)), "code"), **spec)


@pytest.fixture(params=["interpreter", "sandbox"])
def runs_in(request: pytest.FixtureRequest) -> str:
    if request.param == "sandbox" and not can_fence():
        pytest.skip("bubblewrap is not here")
    return request.param


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def told(runtime: Runtime, program: str, *tools: Any, **spec: Any) -> str:
    """What the model is told of a program."""
    return (await runtime.run(coder(program, *tools, **spec), "Go.")).output


async def child_of(runtime: Runtime, parent: str) -> Any:
    (found,) = [info for info in await runtime.inside.runs.journal.list() if info.parent == parent]
    return found


async def calls_of(runtime: Runtime, run_id: str) -> list[Any]:
    facts = [event for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]
    return [fact.result.error or fact.result.text for fact in facts]


async def declare(runtime: Runtime, kind: str, name: str, **spec: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await runtime.inside.resources.write([Put(document)])


# --- what a program can do -------------------------------------------------------------------------------------------

TOTAL = """
found = await order("A-1")
total = 0
for line in found["lines"]:
    total = await add(total, b=line["price"])
print("added")
total
"""


async def test_a_program_calls_tools_and_gives_what_it_prints_and_its_last_value(
    runtime: Runtime, runs_in: str
) -> None:
    result = await runtime.run(coder(TOTAL, runs_in=runs_in), "Go.")

    assert result.output == "added\n=> 7"
    child = await child_of(runtime, result.run_id)
    assert await calls_of(runtime, child.id) == ['{"id":"A-1","lines":[{"price":3},{"price":4}]}', "3", "7"]
    assert (child.agent, child.phase) == ("coder", "succeeded")
    assert (await runtime.inside.runs.load(child.id))[1].spent.tokens == 0


async def test_calls_that_are_gathered_are_made_at_the_same_time(runtime: Runtime, runs_in: str) -> None:
    together = asyncio.Barrier(3)

    @tool(effect="read")
    async def meet(n: int) -> int:
        """Wait for the others."""
        async with asyncio.timeout(60):
            await together.wait()
        return n

    program = "import asyncio\nasync def one(n):\n    return await meet(n)\n"
    program += "await asyncio.gather(one(1), meet(2), one(3))"
    assert await told(runtime, program, meet, runs_in=runs_in) == "=> [1,2,3]"


async def test_a_failed_call_is_an_exception_that_the_program_can_handle(runtime: Runtime, runs_in: str) -> None:
    program = 'try:\n    await order("none")\nexcept ToolError as error:\n    print("caught", error)\n'
    assert "caught execution_failed: KeyError: 'no such order'" in await told(runtime, program, runs_in=runs_in)


async def test_calls_with_wrong_arguments_do_not_end_the_program(runtime: Runtime, runs_in: str) -> None:
    program = 'for n in range(6):\n    try:\n        await add(a="x")\n'
    program += "    except ToolError as error:\n        seen = str(error)\n"
    assert await told(runtime, program + "seen[:13]", runs_in=runs_in) == '=> "invalid_input"'
    assert "TypeError: add(): it takes 2 positional" in await told(runtime, "await add(1, 2, 3)", runs_in=runs_in)
    refused = await told(runtime, "await add({1}, 2)", runs_in=runs_in)
    assert "TypeError: add(): the argument 'a' is" in refused
    assert "not JSON" in refused


async def test_the_same_call_twice_is_made_twice(runtime: Runtime, runs_in: str) -> None:
    made = list[int]()

    @tool
    def count() -> int:
        """Count."""
        made.append(1)
        return len(made)

    assert await told(runtime, "[await count(), await count()]", count, runs_in=runs_in) == "=> [1,2]"


async def test_a_result_that_no_model_would_be_shown_whole_is_whole_for_a_program(
    runtime: Runtime, runs_in: str
) -> None:
    @tool(effect="read")
    def many() -> list[int]:
        """Many numbers."""
        return list(range(100_000))

    assert await told(runtime, "sum(await many())", many, runs_in=runs_in) == "=> 4999950000"


async def test_a_call_that_is_not_awaited_is_not_made(runtime: Runtime, runs_in: str) -> None:
    result = await runtime.run(coder("add(1, 2)\nprint('end')", runs_in=runs_in), "Go.")
    assert result.output == "end\nThe call of add was not awaited, and was not made."
    assert await calls_of(runtime, (await child_of(runtime, result.run_id)).id) == []


async def test_names_that_python_does_not_take_have_one_that_it_takes(runtime: Runtime, runs_in: str) -> None:
    @tool(name="memory.look", effect="read")
    def look(key: str) -> str:
        """Look."""
        return f"found {key}"

    assert await told(runtime, 'f = memory_look\nawait f("x")', look, runs_in=runs_in) == '=> "found x"'


# --- errors and bounds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("x = 1\nx.y", "Line 2, in <module>"),
        ("x = 1\nx.y", "AttributeError"),
        ("def f(:", "SyntaxError"),
        ("print('so far')\n1 / 0", "It had printed:\nso far"),
        ("missing(1)", "NameError: name 'missing' is not defined"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("x = []\nwhile True:\n    x.append('a' * 100_000)", "MemoryError"),
        ("while True:\n    print('again and again')", "printed more than 100,000 characters"),
    ],
)
async def test_errors_of_the_program_are_told_with_line_and_text(runtime: Runtime, program: str, said: str) -> None:
    answer = await told(runtime, program)
    assert answer.startswith("Error (execution_failed): ")
    assert said in answer
    assert len(answer) < 10_000


async def test_a_program_without_end_is_ended(runtime: Runtime) -> None:
    assert "time limit exceeded" in await told(runtime, "while True:\n    pass", code={"timeout": "200ms"})


async def test_a_program_makes_no_more_calls_than_it_may(runtime: Runtime, runs_in: str) -> None:
    program = "for n in range(9):\n    await add(n, n)"
    result = await runtime.run(coder(program, code={"max_calls": 4}, runs_in=runs_in), "Go.")
    assert "more than 4 calls" in result.output
    assert len(await calls_of(runtime, (await child_of(runtime, result.run_id)).id)) == 4


async def test_calls_of_all_programs_count_to_the_limit_of_their_agent(runtime: Runtime) -> None:
    turns = [{"call": {"code": {"program": f"for n in range({n}):\n    await add(n, n)\n'all'"}}} for n in (3, 2)]
    agent = Agent(
        "coder", model=ScriptedModel([*turns, {"say": "ok"}]), tools=(add, "code"), limits={"max_tool_calls": 6}
    )
    result = await runtime.run(agent, "Go.")
    first, second = await calls_of(runtime, result.run_id)
    assert first == '=> "all"'
    assert "tool calls are used" in second.message


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.listdir('/')",
        "import os\nos.environ['HOME']",
        "open('/etc/passwd').read()",
        "import pathlib\npathlib.Path('/etc/passwd').read_text()",
        "import socket",
        "import subprocess",
        "__import__('os').system('id')",
        "().__class__.__mro__",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 0).__globals__",
        "add.__globals__",
        "eval('open(\"/etc/passwd\")')",
        "exec('import ctypes')",
        "import sys\nsys.modules",
        "'{0.__class__}'.format(1)",
    ],
)
async def test_nothing_outside_is_reached(runtime: Runtime, program: str) -> None:
    assert (await told(runtime, program)).startswith("Error (execution_failed): ")


async def test_time_and_chance_are_the_same_whenever_it_is_run(runtime: Runtime) -> None:
    program = "import random, time\na = random.randint(1, 10**9)\nb = time.time()\n"
    program += "c = await add(a, 1)\nd = await add(c, int(b))\nawait add(a, d)"
    first, second = await told(runtime, program), await told(runtime, program)
    assert first.startswith("=> ")
    assert first == second


async def test_a_program_says_when_it_asks_for_something_else_than_before(runtime: Runtime) -> None:
    from foliot.engine.code.conversation import Call as Asked
    from foliot.engine.code.conversation import ProgramError, answers_to, course_of
    from foliot.kernel.messages import Message, ModelRequest, Text, ToolCall, ToolResult, ToolSpec

    messages = (
        Message("user", (Text("await add(1, 2)"),)),
        Message("assistant", (ToolCall("c", "add", '{"a":1,"b":2}'),)),
        Message("tool", (ToolResult("c", "add", (Text("3"),)),)),
    )
    course = course_of(ModelRequest("m", messages, tools=(ToolSpec("add"),)))
    with pytest.raises(ProgramError, match=r'asked for add\({"a":9}\) where it had asked for add\({"a":1,"b":2}\)'):
        answers_to([Asked(0, "add", {"a": 9})], course.batches[0])


# --- in a sandbox ----------------------------------------------------------------------------------------------------

WHOLE = """
class Basket(list):
    def total(self):
        return sum(each for each in self)

def prices(found):
    for line in found["lines"]:
        yield line["price"]

import os, statistics
before = os.getpid()
basket = Basket(prices(await order("A-1")))
[basket.total(), statistics.mean(basket), before == os.getpid()]
"""


FORGED = """
import os, struct
said = {said}
for each in range(3, 20):
    try:
        left = memoryview({head} + said)
        while left:
            left = left[os.write(each, left):]
    except OSError:
        pass
"""


def forged(said: str, head: str = "struct.pack('>I', len(said))") -> str:
    """A program that writes where only what runs it should."""
    return FORGED.format(said=said, head=head)


async def sandboxed(runtime: Runtime, program: str, *tools: Any, **code: Any) -> str:
    if not can_fence():
        pytest.skip("bubblewrap is not here")
    return await told(runtime, program, *tools, code={"runs_in": "sandbox", **code})


async def test_in_a_sandbox_there_is_all_of_python_and_a_program_is_run_once(runtime: Runtime) -> None:
    assert await sandboxed(runtime, WHOLE) == "=> [7,3.5,true]"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("x = 1\nx.y", "Line 2, in <module>\n    x.y\nAttributeError"),
        ("def f(:", "SyntaxError"),
        ("print('so far')\n1 / 0", "It had printed:\nso far"),
        ("while True:\n    print('again and again')", "printed more than 100,000 characters"),
        ("import os\nos._exit(3)", "ended its process with the code 3"),
        (forged("b'{}'"), "out of turn"),
        (forged("b'no JSON'"), "out of turn"),
        (forged("b'[1]'"), "out of turn"),
        (forged("b'{\"ready\": true}'"), "out of turn"),
        (forged('b\'{"ended": true, "unawaited": ["nope"]}\''), "out of turn"),
        (forged('b\'{"ended": true, "value": [1]}\''), "out of turn"),
        (forged("b'{\"ended\": true, \"printed\": \"' + 200_000 * b'x' + b'\"}'"), "out of turn"),
        (forged("b'{\"ended\": true, \"value\": ' + 100_000 * b'[' + 100_000 * b']' + b'}'"), "out of turn"),
        (forged('b\'{"calls": [{"number": 1, "function": "nope", "arguments": {}}]}\''), "is not defined"),
        (forged('b\'{"calls": [{"number": 1, "function": "\' + 9_000 * b\'x\' + b\'", "arguments": {}}]}\''), "xx"),
        (forged("b''", "struct.pack('>I', 2**32 - 1)"), "answered with 4,294,967,295 bytes"),
        ("class Odd:\n    def __repr__(self):\n        return 1 / 0\nOdd()", "cannot be shown"),
        ("open('/root/.bashrc')", "FileNotFoundError"),
        ("open('/etc/shadow')", "Error"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 53), 1)", "OSError"),
        ("import asyncio\nawait asyncio.Event().wait()", "computed for more than 2 seconds"),
        ("while True:\n    pass", "computed for more than 2 seconds"),
    ],
)
async def test_in_a_sandbox_errors_are_told_and_nothing_outside_is_reached(
    runtime: Runtime, program: str, said: str
) -> None:
    # All others end by themselves, on a busy machine later than that.
    answer = await sandboxed(runtime, program, timeout="2s" if "2 seconds" in said else "1m")
    assert answer.startswith("Error (execution_failed): ")
    assert said in answer
    assert len(answer) < 10_000


async def test_a_value_that_is_too_large_is_said_and_keeps_nobody_waiting(runtime: Runtime, runs_in: str) -> None:
    with watched_steps() as steps:
        answer = await told(runtime, "print('so far')\nlist(range(500_000))", code={"runs_in": runs_in})
    assert "the value of the last expression has 3,388,891 bytes as JSON; 1,048,576 are the most" in answer
    assert answer.endswith("It had printed:\nso far")
    assert steps.longest < 0.5


async def test_in_a_sandbox_text_that_is_no_unicode_ends_no_program(runtime: Runtime) -> None:
    assert (await sandboxed(runtime, "print(chr(0xD800))")).strip() == "?"
    assert "surrogates not allowed" in await sandboxed(runtime, "[chr(0xD800)]")
    asking = "try:\n    await add(chr(0xD800), 1)\nexcept TypeError as error:\n    print(error)"
    assert "the argument 'a' is not JSON" in await sandboxed(runtime, asking, add)


@tool(effect="read")
def length(text: str) -> int:
    """Say how long a text is."""
    return len(text)


async def test_in_a_sandbox_large_arguments_are_asked_for_one_after_the_other(runtime: Runtime) -> None:
    many = "await asyncio.gather(*(length('x' * 3_000_000) for _ in range(4)))"
    assert await sandboxed(runtime, many, length) == "=> [3000000,3000000,3000000,3000000]"
    more = "try:\n    await length('x' * 5_000_000)\nexcept ValueError as error:\n    print(error)"
    assert "5,000,006 bytes as JSON; 4,194,304 are the most" in await sandboxed(runtime, more, length)


async def test_a_policy_on_mounts_does_not_keep_programs_from_their_python(runtime: Runtime) -> None:
    await declare(runtime, "AgentPolicy", "no-mounts", apply_mode="global", sandbox={"mounts": []})
    assert await sandboxed(runtime, "1 + 1") == "=> 2"


async def test_in_a_sandbox_there_is_no_variable_of_ours(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-7d1")
    answer = await sandboxed(runtime, "import os\nstr(dict(os.environ)) + open('/proc/self/environ').read()")
    assert "PYTHONHASHSEED" in answer
    assert "canary" not in answer


async def test_a_program_that_depends_on_time_is_ended_when_it_has_to_be_run_again(tmp_path: Path) -> None:
    if not can_fence():
        pytest.skip("bubblewrap is not here")
    begun, free = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait until it may go on."""
        begun.set()
        await free.wait()
        return "at last"

    agent = coder("import time\nawait add(time.time_ns(), 1)\nawait dawdle()", add, dawdle, runs_in="sandbox")
    async with Runtime(tmp_path / "foliot.db") as runtime:
        running = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1"))
        await begun.wait()
        await stop_tasks(running)
    free.set()
    async with Runtime(tmp_path / "foliot.db") as runtime:
        told = (await runtime.resume("r-1", agent=agent)).output
    assert "run again, the program asked for add(" in told
    assert "must not depend on the time" in told


# --- the same governance ---------------------------------------------------------------------------------------------


async def test_the_child_is_the_same_agent_with_the_same_tools_and_locks(runtime: Runtime) -> None:
    agent = coder("await add(1, 2)", add, order, "submit_work", "list_tools", allowed_tools=["add"])
    result = await runtime.run(agent, "Go.")
    _, parent = await runtime.inside.runs.load(result.run_id)
    _, child = await runtime.inside.runs.load((await child_of(runtime, result.run_id)).id)

    def rules(names: set[str]) -> list[ToolRule]:
        return [rule for rule in parent.spec.tools if rule.name in names]

    assert list(child.spec.tools) == rules({"add", "order", "list_tools"})
    assert child.spec.extra["tools"].items() <= parent.spec.extra["tools"].items()
    assert child.spec.extra["allowed_tools"] == ["add"]
    assert isinstance(child.created, RunCreated)
    assert (child.created.agent, child.created.depth, child.created.ancestors) == ("coder", 1, ())
    assert child.spec.model == parent.spec.model


async def test_a_rule_about_a_tool_holds_for_the_calls_of_a_program(runtime: Runtime, runs_in: str) -> None:
    rules = [{"operation_class": "*", "verdict": "deny"}]
    await declare(runtime, "ToolPermission", "no-sums", tool_ref="add", operation_rules=rules)
    program = "try:\n    await add(1, 2)\nexcept ToolError as error:\n    print(error)"
    assert (await told(runtime, program, runs_in=runs_in)).startswith("permission_denied: ")


async def test_a_denial_that_ends_runs_ends_the_program_and_its_agent(runtime: Runtime) -> None:
    rules = [{"operation_class": "*", "verdict": "deny"}]
    await declare(runtime, "ToolPermission", "no-sums", tool_ref="add", operation_rules=rules)
    agent = coder("try:\n    await add(1, 2)\nexcept ToolError:\n    pass", execution={"on_denied": "fail"})
    result = await runtime.run(agent, "Go.", check=False)
    assert result.phase == "failed"
    assert (await child_of(runtime, result.run_id)).phase == "failed"
    assert "add" in str(result.error)


async def test_a_call_in_the_middle_waits_for_an_approval(runtime: Runtime, runs_in: str) -> None:
    await declare(
        runtime,
        "ToolPermission",
        "careful",
        tool_ref="add",
        conditions=[{"when": "args.a == 2", "verdict": "approval_required"}],
    )
    program = "seen = [await add(n, 0) for n in range(4)]\nseen"
    running = asyncio.create_task(told(runtime, program, runs_in=runs_in))
    async with asyncio.timeout(60):
        while not (approvals := [each async for each in runtime.inside.approvals.list()]):
            await asyncio.sleep(0.01)
        assert (approvals[0]["spec"]["tool"], approvals[0]["spec"]["agent"]) == ("add", "coder")
        await runtime.inside.decide_approval(approvals[0]["metadata"]["name"], "approve", by="ann")
        assert await running == "=> [0,1,2,3]"


async def test_a_call_that_is_not_approved_is_an_exception(runtime: Runtime, runs_in: str) -> None:
    await declare(
        runtime,
        "ToolPermission",
        "careful",
        tool_ref="add",
        conditions=[{"when": "true", "verdict": "approval_required"}],
    )
    program = "try:\n    await add(1, 2)\nexcept ToolError as error:\n    print(error)"
    running = asyncio.create_task(told(runtime, program, runs_in=runs_in))
    async with asyncio.timeout(60):
        while not (approvals := [each async for each in runtime.inside.approvals.list()]):
            await asyncio.sleep(0.01)
        await runtime.inside.decide_approval(approvals[0]["metadata"]["name"], "deny", by="ann")
        assert "approval_denied" in await running or "permission_denied" in await running


async def test_agents_are_called_by_programs_and_paid_for(runtime: Runtime, runs_in: str) -> None:
    helper = Agent("helper", model=ScriptedModel([{"say": "did {input}", "usage": {"input_tokens": 7}}]))
    agent = coder('await agent_helper("this")', helper, limits={"max_tokens": 1000}, runs_in=runs_in)
    result = await runtime.run(agent, "Go.")
    assert result.output == '=> "did this"'
    _, state = await runtime.inside.runs.load((child := await child_of(runtime, result.run_id)).id)
    assert state.spent.input_tokens == 7
    assert child.id in (await runtime.inside.runs.load(result.run_id))[1].paid
    _, helped = await runtime.inside.runs.load((await child_of(runtime, child.id)).id)
    assert helped.spec.limits.max_tokens is not None


async def test_programs_do_not_go_deeper_than_agents(runtime: Runtime) -> None:
    deep: Any = add
    call = "await add(1, 2)"
    for n in range(MAX_DEPTH):
        turns = [{"call": {"code": {"program": call}}}, {"say": "{last_result}"}]
        deep = Agent(f"d{n}", model=ScriptedModel(turns), tools=[deep, "code"])
        call = f'await agent_d{n}("go")'
    assert "one deeper" in (await runtime.run(deep, "Go.")).output


async def test_an_agent_cannot_name_the_interpreter_as_its_model(runtime: Runtime) -> None:
    from foliot.errors import InvalidInput

    with pytest.raises(InvalidInput, match="not a model that an agent can have"):
        await runtime.run(Agent("sly", model="builtin:code", tools=[add]), "await add(1, 2)")


async def test_outside_a_run_there_is_no_program(runtime: Runtime) -> None:
    from foliot.runtime.tools import ToolCaller

    done = await runtime.inside.tools.call("code", {"program": "1"}, ToolCaller())
    assert done.error is not None
    assert done.error.code == "unsupported_tool"


# --- cancelling, dying, replaying, forking ---------------------------------------------------------------------------


async def test_a_cancelled_run_ends_its_program(runtime: Runtime, runs_in: str) -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    running = asyncio.create_task(
        runtime.run(coder("await dawdle()", dawdle, runs_in=runs_in), "Go.", run_id="r-1", check=False)
    )
    async with asyncio.timeout(60):
        await begun.wait()
        await runtime.inside.cancel("r-1")
        assert (await running).phase == "cancelled"
    assert (await child_of(runtime, "r-1")).phase == "cancelled"


@pytest.fixture(params=BOTH)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "foliot.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


DIES = """
import asyncio, sys
from pathlib import Path
from foliot import Runtime
from tests.test_code_mode import mortal

async def main():
    async with Runtime(sys.argv[1], lease_seconds=5) as runtime:
        await runtime.run(mortal(Path(sys.argv[2]), sys.argv[3]), "Go.", run_id="r-1")

asyncio.run(main())
"""
ONE_BY_ONE = (
    "a = await mark('a')\nb = await mark('b')\nawait die()\nc = await mark('c')\nd = await mark('d')\n[a, b, c, d]"
)
TWO_AT_ONCE = """
import asyncio
first = await asyncio.gather(mark("a"), mark("b"))
await die()
first + await asyncio.gather(mark("c"), mark("d"))
"""


def mortal(folder: Path, program: str) -> Agent:
    """Its tool `mark` acts once for each call; the first process is killed at `die`."""

    @tool(effect="once")
    async def mark(name: str) -> str:
        """Leave a mark."""
        with (folder / "marks").open("a") as marks:
            marks.write(f"{name}\n")
        return name

    @tool(effect="read")
    async def die() -> str:
        """Be killed, once."""
        if (folder / "die").exists():
            (folder / "die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    return coder(program, mark, die, code={"runs_in": os.environ.get("RUNS_IN", "interpreter")})


@pytest.mark.parametrize("program", [ONE_BY_ONE, TWO_AT_ONCE])
async def test_after_a_kill_a_program_goes_on_and_no_finished_call_is_made_again(
    store: str, tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch, runs_in: str
) -> None:
    monkeypatch.setenv("RUNS_IN", runs_in)
    (tmp_path / "die").touch()
    done = subprocess.run(
        [sys.executable, "-c", DIES, store, str(tmp_path), program],
        timeout=110,
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert sorted((tmp_path / "marks").read_text().split()) == ["a", "b"]
    async with asyncio.timeout(100), Runtime(store) as runtime:
        result = await runtime.resume("r-1", agent=mortal(tmp_path, program))
        assert result.output == '=> ["a","b","c","d"]'
    assert sorted((tmp_path / "marks").read_text().split()) == ["a", "b", "c", "d"]


async def test_a_run_that_is_let_go_in_the_middle_is_taken_up_by_another_process(tmp_path: Path, runs_in: str) -> None:
    begun = asyncio.Event()
    free = asyncio.Event()

    @tool(effect="read")
    async def dawdle() -> str:
        """Wait until it may go on."""
        begun.set()
        await free.wait()
        return "at last"

    agent = coder("print(await add(1, 2))\nawait dawdle()", add, dawdle, runs_in=runs_in)
    async with Runtime(tmp_path / "foliot.db") as runtime:
        running = asyncio.create_task(runtime.run(agent, "Go.", run_id="r-1"))
        await begun.wait()
        await stop_tasks(running)
    free.set()
    async with Runtime(tmp_path / "foliot.db") as runtime:
        assert (await runtime.resume("r-1", agent=agent)).output == '3\n=> "at last"'


async def test_a_program_is_replayed_and_forked_as_any_run(runtime: Runtime, runs_in: str) -> None:
    result = await runtime.run(coder(TOTAL, runs_in=runs_in), "Go.")
    child = await child_of(runtime, result.run_id)
    for run_id in (result.run_id, child.id):
        assert (await runtime.inside.replay(run_id)).difference is None
    forked = await runtime.inside.fork(child.id, at=3)
    assert forked.output == "added\n=> 7"
    assert await calls_of(runtime, forked.run_id) == ["7"]


async def test_a_program_works_on_the_files_of_its_agent(runtime: Runtime, runs_in: str) -> None:
    turns = [
        {"call": {"write": {"path": "a.txt", "content": "one"}}},
        {"call": {"code": {"program": FILES}}},
        {"call": {"read": {"path": "b.txt"}}},
        {"say": "{last_result}"},
    ]
    code = {"runs_in": runs_in}
    agent = Agent("coder", model=ScriptedModel(turns), tools=("read", "write", "code"), code=code)
    result = await runtime.run(agent, "Go.")
    assert "one and two" in result.output


PUT = {
    "type": "cli",
    "effect": "idempotent",
    "cli": {"command": ["sh", "-c", 'echo "$2" > "$1"', "sh", "{name}", "{text}"], "workspace": "read_write"},
    "input_schema": {"type": "object", "properties": {"name": {"type": "string"}, "text": {"type": "string"}}},
}
NAMES = {"type": "cli", "effect": "read", "cli": {"command": ["ls"], "workspace": "read_only"}}


@pytest.mark.parametrize(
    "calls",
    [
        [
            {"code": {"program": "await put(name='a', text='1')"}},
            {"code": {"program": "await put(name='b', text='2')"}},
        ],
        [{"code": {"program": "await put(name='a', text='1')"}}, {"put": {"name": "b", "text": "2"}}],
        [{"put": {"name": "b", "text": "2"}}, {"code": {"program": "await put(name='a', text='1')"}}],
        [{"put": {"name": "b", "text": "2"}}, {"put": {"name": "a", "text": "1"}}],
    ],
)
async def test_calls_of_one_step_keep_each_others_files(runtime: Runtime, calls: list[Any]) -> None:
    if not can_fence():
        pytest.skip("bubblewrap is not here")
    await declare(runtime, "Tool", "put", **PUT)
    await declare(runtime, "Tool", "names", **NAMES)
    turns = [{"call": calls}, {"call": {"names": {}}}, {"say": "{last_result}"}]
    agent = Agent("coder", model=ScriptedModel(turns), tools=("put", "names", "code"))
    assert (await runtime.run(agent, "Go.")).output.split() == ["a", "b"]


@pytest.mark.parametrize("access", ["none", "read_only", "read_write"])
async def test_the_fence_of_an_mcp_server_says_what_its_tools_do_with_files(runtime: Runtime, access: str) -> None:
    await declare(runtime, "McpServer", "editor", transport="stdio", command="cat", sandbox={"workspace": access})
    await declare(runtime, "Tool", "edit", type="mcp", mcp_server_ref="editor", mcp_tool_name="edit", effect="read")
    assembly = runtime.inside._assembly
    agent = Agent("coder", model=ScriptedModel([{"say": "Done."}]), tools=("edit", "code"))
    pipeline = await assembly.pipeline(await assembly.freeze(agent))
    edit, code = pipeline.definition("edit"), pipeline.definition("code")
    assert edit is not None
    assert code is not None
    assert (edit.fence_access, edit.changes_files) == (access, access == "read_write")
    assert code.resource_keys == (() if access == "none" else ("file:*",))


FILES = """
text = await read("a.txt")
await write("b.txt", ("one" if "one" in text else "nothing") + " and two")
"""


async def test_without_the_package_it_is_said_what_to_install(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.tools.builtin.code.PACKAGE", "no_such_package")
    agent = coder("1")
    result = await runtime.run(agent, "Go.")
    (refused,) = await calls_of(runtime, result.run_id)
    assert (refused.code, "pydantic-monty" in refused.message) == ("unsupported_tool", True)
    assembly = runtime.inside._assembly
    pipeline = await assembly.pipeline(await assembly.freeze(agent))
    entry = pipeline.entry("code")
    assert entry is not None
    assert await assembly.backends.lacks(entry.tool) == "package pydantic-monty"


async def test_an_execution_policy_that_denies_programs_denies_code(runtime: Runtime) -> None:
    agent = coder("1", add, execution_policy={"security": "deny"})
    result = await runtime.run(agent, "Go.")
    (refused,) = await calls_of(runtime, result.run_id)
    assert refused.code == "permission_denied"


async def test_the_execution_policy_of_an_agent_holds_for_the_calls_of_its_programs(runtime: Runtime) -> None:
    policy = {"security": "allowlist"}
    agent = coder("await bash('id')", "bash", execution_policy=policy, allowed_tools=["code"])
    assert "permission_denied: the execution policy of the run" in (await runtime.run(agent, "Go.")).output


class Priced(ScriptedModel):
    """A model whose answers have a price."""

    pricing = Pricing(input=1.0, output=10.0)


async def test_a_program_needs_nothing_of_a_budget_that_refuses_unknown_prices(runtime: Runtime) -> None:
    await declare(runtime, "Budget", "team", limit={"amount": "5.00", "tokens": 100_000}, on_exceeded="fail")
    turns = [{"call": {"code": {"program": TOTAL}}}, {"say": "{last_result}"}]
    result = await runtime.run(Agent("coder", model=Priced(turns), tools=(add, order, "code")), "Go.")
    assert result.output == "added\n=> 7"
    _, child = await runtime.inside.runs.load((await child_of(runtime, result.run_id)).id)
    assert (child.spent.cost_usd, child.spent.unpriced) == (0.0, 0)
