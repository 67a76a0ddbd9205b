"""`python` in a real fence: what is kept between calls, what is shown, and how each end of an interpreter is told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import Caller, ToolArgumentsInvalid, ToolIsolationMissing
from foliot.tools.builtin.output import CommandFailed, CommandTimedOut
from foliot.tools.builtin.python import Interpreters, PythonTool
from foliot.tools.fences import Ceiling, Fences
from foliot.tools.workspaces import SharedWorkspace
from tests.conformance.sandbox import marked, until_marked
from tests.tools.builtin.kit import invocation

RESTARTED = "[The interpreter was restarted"


class Kit:
    def __init__(self, folder: Path, **bounds) -> None:
        self.sandbox = ProcessSandbox()
        self.ceilings: list[Ceiling] = []
        self.fences = Fences(
            lambda _: self.sandbox, workspaces=SharedWorkspace(folder, "default"), ceilings=self._holding
        )
        self.interpreters = Interpreters(self.fences, **bounds)
        self.tool = PythonTool(self.interpreters)

    async def _holding(self, caller: Caller) -> list[Ceiling]:
        return list(self.ceilings)

    async def run(self, code: str, *, run: str = "run-1", on_output=None, **arguments) -> str:
        call = invocation(self.tool, {"code": code, **arguments}, run_id=run)
        return await self.tool.invoke(call, on_output=on_output)

    async def body(self, code: str, **given) -> str:
        """What is shown, without the last line."""
        return (await self.run(code, **given)).rpartition("[ok | ")[0].removesuffix("\n")

    async def close(self) -> None:
        await self.interpreters.close()
        await self.sandbox.close()


@pytest.fixture
async def python(tmp_path):
    kit = Kit(tmp_path)
    yield kit
    await kit.close()


pytestmark = pytest.mark.fence


async def test_variables_imports_and_functions_are_kept_from_call_to_call(python) -> None:
    await python.run("import math\nx = 20\ndef twice(n):\n    return 2 * n")
    assert await python.body("twice(x) + math.floor(2.5)") == "42"
    assert await python.body("_ + 1") == "43"
    assert await python.body("class A: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(A()))).__name__") == "'A'"


async def test_what_is_printed_comes_before_the_value_also_from_programs(python) -> None:
    heard: list[str] = []
    code = "import os, sys\nprint('one')\nos.system('echo two')\nprint('three', file=sys.stderr)\n'value'"
    assert await python.body(code, on_output=heard.append) == "one\ntwo\nthree\n'value'"
    assert "".join(heard) == "one\ntwo\nthree\n"
    assert await python.body("None") == ""
    assert await python.body("y = 1") == ""


async def test_an_error_shows_the_lines_of_the_code_and_nothing_of_ours(python) -> None:
    with pytest.raises(CommandFailed) as caught:
        await python.run("def f():\n    return 1 / 0\nprint('before')\nf()")
    lines = caught.value.message.split("\n")
    assert lines[:3] == ["python: the code failed", "before", "Traceback (most recent call last):"]
    assert "    return 1 / 0" in lines
    assert "ZeroDivisionError: division by zero" in lines
    assert "interpreter.py" not in caught.value.message
    assert "exec(" not in caught.value.message
    with pytest.raises(CommandFailed, match="SyntaxError") as caught:
        await python.run("x = (")
    assert "ast.py" not in caught.value.message
    assert await python.body("f.__name__") == "'f'", "the interpreter goes on"


async def test_code_that_exits_is_told_so_and_the_interpreter_goes_on(python) -> None:
    await python.run("x = 1")
    with pytest.raises(CommandFailed, match="SystemExit: 3"):
        await python.run("import sys\nsys.exit(3)")
    assert await python.body("x") == "1"


async def test_code_sees_the_files_of_the_workspace_and_its_modules(python, tmp_path) -> None:
    (tmp_path / "helper.py").write_text("answer = 42")
    assert await python.body("import helper, os\nopen('made', 'w').write('x')\n(helper.answer, os.getcwd())") == (
        "(42, '/workspace')"
    )
    assert (tmp_path / "made").read_text() == "x"


async def test_a_call_that_takes_too_long_ends_the_interpreter_and_says_so(python) -> None:
    mark = f"3600.{time.time_ns() % 10**9:09d}"
    await python.run("x = 1")
    with pytest.raises(CommandTimedOut, match=r"more than 1 seconds.*variables are gone") as caught:
        await python.run(
            f"import os\nprint('up', flush=True)\nos.system('setsid sleep {mark} & sleep {mark}')", timeout=1
        )
    assert caught.value.message.endswith("up\n")
    assert caught.value.unknown is None
    assert marked(mark) == []
    shown = await python.run("'x' in globals()")
    assert shown.startswith(f"{RESTARTED} because a call took too long: variables")
    assert "\nFalse\n" in shown
    assert RESTARTED not in await python.run("1")


async def test_a_call_that_is_cancelled_leaves_nothing(python) -> None:
    mark, up = f"3600.{time.time_ns() % 10**9:09d}", asyncio.Event()
    code = f"import os\nprint('up', flush=True)\nos.system('setsid sleep {mark} & sleep {mark}')"
    running = asyncio.create_task(python.run(code, on_output=lambda _: up.set()))
    await asyncio.wait_for(up.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(mark) == []
    assert python.interpreters.size == 0
    assert (await python.run("1")).startswith(f"{RESTARTED} because a call was cancelled")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\nprint('last')\nos._exit(7)", "it ended with the code 7"),
        ("import os, signal\nprint('last', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)", "by the signal SIGKILL"),
        ("import os\nprint('last')\nos.close(3)\nos.close(4)\nos.close(5)", "it ended with the code"),
        ("import os\nprint('last', flush=True)\nos.write(4, b'x' * 100)", "where only answers belong"),
    ],
)
async def test_code_that_breaks_the_interpreter_is_told_how(python, code: str, why: str) -> None:
    await python.run("x = 1")
    with pytest.raises(CommandFailed, match="Its variables are gone") as caught:
        await python.run(code)
    assert why in caught.value.message
    assert caught.value.message.endswith("last\n")
    assert RESTARTED in await python.run("1")


async def test_what_forks_does_not_answer_too(python) -> None:
    assert await python.body(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'parent' if pid else 'child'"
    ) == ("'parent'")
    assert await python.body("1 + 1") == "2"


async def test_output_and_values_are_bounded_and_say_how_much_there_was(python) -> None:
    shown = await python.run("for n in range(100_000): print(n)")
    assert shown.startswith("[The last 2000 of 100000 lines; 588890 bytes in all; ")
    assert "\n99999\n[ok | " in shown
    assert "[The first 16000 of 1000002 characters]" in await python.run("'x' * 1_000_000")
    with pytest.raises(CommandFailed) as caught:
        await python.run("print('y' * 1_000_000)\nraise ValueError('z' * 100_000)")
    assert len(caught.value.message) < 8000


async def test_one_run_sees_nothing_of_another(python) -> None:
    await python.run("secret = 'of one'", run="run-1")
    assert await python.body("'secret' in globals()", run="run-2") == "False"
    assert RESTARTED not in await python.run("1", run="run-2")
    pids = "import os\nsorted(int(n) for n in os.listdir('/proc') if n.isdigit())"
    assert len((await python.body(pids, run="run-2")).split(",")) < 5, "only its own processes"


async def test_calls_of_one_run_take_turns(python) -> None:
    code = "import time\nx = {n}\ntime.sleep(0.05)\nx"
    shown = await asyncio.gather(*(python.body(code.format(n=n)) for n in range(4)))
    assert shown == ["0", "1", "2", "3"]
    assert python.interpreters.size == 1


async def test_the_one_used_longest_ago_makes_place_and_its_run_is_told(tmp_path) -> None:
    python = Kit(tmp_path, most=2)
    for run in ("a", "b", "a", "c"):
        await python.run("x = 1", run=run)
    assert python.interpreters.size == 2
    assert await python.body("x", run="a") == "1"
    assert (await python.run("1", run="b")).startswith(f"{RESTARTED} because other runs needed its place")
    await python.close()


async def test_more_runs_than_places_at_once_wait_for_each_other(tmp_path) -> None:
    python = Kit(tmp_path, most=2)
    shown = await asyncio.gather(*(python.body(f"{n} * 2", run=f"run-{n}") for n in range(8)))
    assert shown == [str(n * 2) for n in range(8)]
    assert python.interpreters.size <= 2
    await python.close()


async def test_one_that_is_idle_is_ended(tmp_path) -> None:
    python = Kit(tmp_path, idle_seconds=0.05)
    await python.run("x = 1")
    for _ in range(1000):
        if python.interpreters.size == 0:
            break
        await asyncio.sleep(0.01)
    assert python.interpreters.size == 0
    assert "because it was idle for" in await python.run("1")
    await python.close()


async def test_a_run_that_has_ended_leaves_nothing(python) -> None:
    mark = f"3600.{time.time_ns() % 10**9:09d}"
    await python.run(f"import subprocess\np = subprocess.Popen(['sleep', '{mark}'], start_new_session=True)")
    await until_marked(mark)
    await python.interpreters.end("run-1")
    assert marked(mark) == []
    assert python.interpreters.size == 0


async def test_outside_of_any_run_nothing_is_kept(python) -> None:
    await python.run("x = 1", run="")
    assert await python.body("'x' in globals()", run="") == "False"
    assert python.interpreters.size == 0


async def test_another_folder_in_its_place_restarts_it(python, tmp_path) -> None:
    await python.run("x = 1")
    tmp_path.rename(tmp_path.with_name("moved"))
    tmp_path.mkdir()
    (tmp_path / "new").write_text("")
    assert "\n['new']\n" in await python.run("import os\nos.listdir()")


async def test_what_is_no_code_is_refused(python) -> None:
    for wrong in ("", "  ", None, 3):
        with pytest.raises(ToolArgumentsInvalid, match="python: code is required"):
            await python.tool.invoke(invocation(python.tool, {"code": wrong}))
    with pytest.raises(ToolArgumentsInvalid, match="lone surrogate"):
        await python.run("'\ud800'")
    with pytest.raises(ToolIsolationMissing):
        await PythonTool().invoke(invocation(python.tool, {"code": "1"}))


async def test_there_is_no_network_and_no_environment_of_ours(python, monkeypatch) -> None:
    monkeypatch.setenv("FOLIOT_CANARY", "canary")
    assert await python.body("import os\n'canary' in str(os.environ)") == "False"
    with pytest.raises(CommandFailed, match="unreachable"):
        await python.run("import socket\nsocket.create_connection(('192.0.2.1', 80), 5)")


STRICT = [Ceiling("strict", workspace="read_only")]


@pytest.mark.parametrize(("before", "meanwhile"), [(STRICT, []), ([], STRICT)], ids=["taken away", "given"])
async def test_a_rule_that_changes_while_a_call_waits_for_its_place_holds(tmp_path, before, meanwhile) -> None:
    kit = Kit(tmp_path, most=1)
    other = asyncio.create_task(
        kit.run("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)", run="other")
    )
    while not kit.interpreters.runs:
        await asyncio.sleep(0.01)
    kit.ceilings[:] = before
    mine = asyncio.create_task(kit.run("x = 1"))
    while "run-1" not in kit.interpreters.runs:
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0)  # it has been narrowed, and waits
    kit.ceilings[:] = meanwhile
    (tmp_path / "go").touch()
    await asyncio.gather(other, mine)

    kit.ceilings[:] = STRICT
    with pytest.raises(CommandFailed, match="Read-only file system"):
        await kit.run("open('/workspace/written', 'w')")
    await kit.close()
    assert not (tmp_path / "written").exists()
