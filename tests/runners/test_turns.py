"""A turn of a program: what it is given, what of its output is the answer, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, Streamed, tool
from foliot.engine.runners.gateway import NOTHING_SAID
from foliot.kernel.messages import ReasoningDelta, TextDelta
from foliot.kernel.run.codec import type_of
from tests.runners.kit import alive, answers_of, program, speaks_lines


@tool(effect="read")
async def population(city: str) -> int:
    """How many people live in a city."""
    return {"Oslo": 717_000}[city]


def command(*words: str, **runner: Any) -> Agent:
    return Agent("worker", runner={"command": list(words), **runner})


# --- text ------------------------------------------------------------------------------------------------------------


async def test_the_prompt_is_on_standard_input_and_what_is_printed_is_the_answer(runtime: Runtime) -> None:
    result = await runtime.run(command("tr", "a-z", "A-Z"), "how are you?")

    assert (result.output, result.steps) == ("HOW ARE YOU?", 1)
    types = [type_of(event) for _, event in await runtime.inside.runs.facts(result.run_id)]
    assert types == ["run.created", "run.claimed", "step.started", "model.responded", "run.succeeded"]


@pytest.mark.parametrize("prompt", ["$(id); `id` \"'", "two\nlines", "{session}", "café"])
async def test_a_prompt_that_is_an_argument_is_read_by_no_shell(runtime: Runtime, prompt: str) -> None:
    result = await runtime.run(command("printf", "%s|", "--", "{prompt}"), prompt)

    assert result.output == f"--|{prompt}|"


async def test_a_prompt_never_becomes_an_option_of_the_program(runtime: Runtime) -> None:
    result = await runtime.run(command("echo", "{prompt}"), "-n", check=False)

    assert result.phase == "failed"
    assert "would take it for an option" in (result.error or "")


async def test_a_program_that_fails_ends_the_run_with_the_end_of_what_it_complained_of(runtime: Runtime) -> None:
    result = await runtime.run(
        command("sh", "-c", "echo fine; echo first >&2; echo last >&2; exit 3"), "go", check=False
    )

    assert (result.phase, result.reason) == ("failed", "program")
    assert result.error == "sh ended with the code 3:\nfirst\nlast"
    assert await answers_of(runtime, result.run_id) == [], "it is not tried again by itself: it may have acted"


async def test_a_program_that_is_not_there_says_where_it_has_to_be(runtime: Runtime) -> None:
    result = await runtime.run(command("/opt/nowhere"), "go", check=False)

    assert result.phase == "failed"
    assert "nowhere" in (result.error or "")


@pytest.mark.parametrize("file", ["./agent.py", "agent.py", "/srv/agent.py"])
async def test_a_program_that_finds_no_file_of_the_machine_says_how_it_is_shown(runtime: Runtime, file: str) -> None:
    result = await runtime.run(command("python3", file), "hi", check=False)
    assert "can't open file" in (result.error or "")
    assert f"if {file} is a file of the machine, show it by runner.sandbox.mounts" in (result.error or "")


async def test_a_program_of_the_machine_runs_from_a_mount(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import sys; print(sys.stdin.read().upper())")
    mounts = [{"source": str(tmp_path / "agent.py"), "target": "/opt/agent.py"}]
    result = await runtime.run(command("python3", "/opt/agent.py", sandbox={"mounts": mounts}), "hi")
    assert result.output == "HI"


async def test_a_program_without_a_word_has_still_an_answer(runtime: Runtime) -> None:
    assert (await runtime.run(command("true"), "go")).output == NOTHING_SAID


async def test_a_program_is_told_the_whole_conversation_when_it_keeps_no_session(runtime: Runtime) -> None:
    agent = Agent("worker", runner={"command": ["cat"]}, output={"type": "object"})

    result = await runtime.run(agent, "first", check=False)

    assert result.phase == "failed", "what it says never fits"
    second = (await answers_of(runtime, result.run_id))[1].response.message.text
    assert second.startswith("User: first\n\nAssistant: first\n\nUser: ")


# --- lines -----------------------------------------------------------------------------------------------------------

CALLS = """
start = hear()
here = os.urandom(4).hex()
say("text", text="Looking. ")
say("tool_call", id="mine", name="population", arguments={"city": start["prompt"]})
result = hear()
say("result", text=f"{result['id']} {result['name']} {result['text']} {result['error']} {'same' if here else ''}")
"""


async def test_a_call_goes_through_the_pipeline_and_its_result_back_to_the_same_process(runtime: Runtime) -> None:
    result = await runtime.run(speaks_lines(CALLS, tools=[population]), "Oslo")

    assert result.output == "mine population 717000 None same"
    assert [type_of(event) for _, event in await runtime.inside.runs.facts(result.run_id)][2:8] == [
        "step.started",
        "model.responded",
        "tool.started",
        "tool.finished",
        "step.started",
        "model.responded",
    ]
    assert (await runtime.inside.replay(result.run_id)).difference is None


async def test_a_failed_call_is_told_to_the_program(runtime: Runtime) -> None:
    code = CALLS.replace("result['text']", "result['error']['code']")

    result = await runtime.run(speaks_lines(code, tools=[population]), "Atlantis")

    assert "execution_failed" in result.output


async def test_several_calls_at_once_each_have_their_result(runtime: Runtime) -> None:
    code = """
    hear()
    say("tool_calls", calls=[dict(id=each, name="population", arguments={"city": each}) for each in ("Oslo", "Rome")])
    say("result", text=" ".join(f"{each['id']}={each['error'] is None}" for each in (hear(), hear())))
    """

    result = await runtime.run(speaks_lines(code, tools=[population]), "go")

    assert result.output == "Oslo=True Rome=False"


async def test_what_is_said_to_a_live_run_is_the_next_turn(runtime: Runtime) -> None:
    said = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait until something was said."""
        await said.wait()
        return "done"

    code = """
    hear()
    say("tool_call", name="wait", arguments={})
    result, heard = hear(), hear()
    say("result", text=f"{result['text']}; {heard['type']}: {heard['text']}")
    """
    run_id = runtime.inside.new_run_id()
    running = asyncio.create_task(runtime.run(speaks_lines(code, tools=[wait]), "go", run_id=run_id))
    while "tool.started" not in [type_of(event) for _, event in await _facts(runtime, run_id)]:
        await asyncio.sleep(0.01)
    await runtime.runs.say(run_id, "and hurry")
    said.set()

    assert (await running).output == "done; input: and hurry"


async def _facts(runtime: Runtime, run_id: str) -> list[Any]:
    with contextlib.suppress(Exception):
        return list(await runtime.inside.runs.facts(run_id))
    return []


async def test_an_input_after_the_last_word_is_another_turn_that_knows_the_session(runtime: Runtime) -> None:
    code = """
    start = hear()
    if start["resume"]:
        say("result", text=f"again in {start['session_id']}: {start['messages'][-1]['text']}")
    else:
        say("session", id="mine-7")
        say("result", text="{}")
    """
    agent = speaks_lines(code)
    agent = Agent("worker", runner=agent.document["spec"]["runner"], output={"type": "object", "required": ["x"]})

    result = await runtime.run(agent, "go", check=False)

    again = (await answers_of(runtime, result.run_id))[1].response.message.text
    assert again.startswith("again in mine-7: ")


async def test_pieces_and_logs_are_shown_while_they_come(runtime: Runtime) -> None:
    code = """
    hear()
    print("not JSON at all", flush=True)
    say("text", text="one ")
    say("log", text="thinking")
    say("text", text="two")
    """
    shown: list[Any] = []
    async for item in runtime.stream(speaks_lines(code), "go"):
        if isinstance(item, Streamed):
            shown.append(item.delta)

    assert [each.text for each in shown if isinstance(each, TextDelta)] == ["one ", "two"]
    assert [each.text for each in shown if isinstance(each, ReasoningDelta)] == ["not JSON at all\n", "thinking\n"]


async def test_usage_that_is_said_is_what_the_run_used(runtime: Runtime) -> None:
    code = """
    hear()
    say("usage", input_tokens=7, output_tokens=3, cost_usd=0.25)
    say("usage", input_tokens=1, output_tokens=1, cost_usd=0.25)
    say("result", text="done")
    """

    result = await runtime.run(speaks_lines(code), "go")

    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.cost_usd) == (8, 4, 0.5)


async def test_a_limit_on_money_holds_before_the_next_turn(runtime: Runtime) -> None:
    code = """
    hear()
    while True:
        say("usage", input_tokens=10, output_tokens=1, cost_usd=0.4)
        say("tool_call", name="population", arguments={"city": "Oslo"})
        hear()
    """
    agent = speaks_lines(code, tools=[population], limits={"max_cost_usd": 1.0, "max_steps": 50}, mark="runner-money")

    result = await runtime.run(agent, "go", check=False)

    assert (result.phase, result.reason, result.steps) == ("failed", "cost_usd", 3)
    assert alive("runner-money") == 0


async def test_a_failure_that_the_program_tells_is_taken_as_it_tells_it(runtime: Runtime) -> None:
    code = """
    hear()
    say("usage", input_tokens=7, output_tokens=3, cost_usd=0.25)
    say("error", message="the timeout of my own was cancelled", outcome="error")
    """

    result = await runtime.run(speaks_lines(code), "go", check=False)

    assert (result.phase, result.reason) == ("failed", "program")
    assert result.usage.cost_usd == 0.25, "what it used is paid for all the same"


@pytest.mark.parametrize(("said", "reason"), [("hit a timeout", "timeout"), ("user cancelled", "program_cancelled")])
async def test_a_failure_without_an_outcome_is_classified_by_its_words(
    runtime: Runtime, said: str, reason: str
) -> None:
    result = await runtime.run(speaks_lines(f"hear()\nsay('error', message={said!r})"), "go", check=False)

    assert (result.phase, result.reason) == ("failed", reason)


# --- terminals -------------------------------------------------------------------------------------------------------


async def test_a_terminal_has_its_size_and_its_sequences_are_shown_and_not_stored(runtime: Runtime) -> None:
    script = r'read line; printf "\033[1mgot\033[0m %s on %s %s\n" "$line" "$TERM" "$(stty size)"'
    raw = ""
    run_id = runtime.inside.new_run_id()
    agent = command("sh", "-c", script, protocol="terminal")
    async for item in runtime.stream(agent, "hello", run_id=run_id):
        if isinstance(item, Streamed) and isinstance(item.delta, TextDelta):
            raw += item.delta.text

    assert "\x1b[1mgot\x1b[0m" in raw
    assert (await runtime.resume(run_id)).output == "got hello on xterm-256color 40 180"


async def test_a_silence_ends_the_session_as_a_success(runtime: Runtime) -> None:
    # A program that needs longer than that for its first word is as silent: a shell needs next to nothing.
    agent = command("sh", "-c", "echo ready; sleep 600; :", "runner-idle", protocol="terminal", idle="1s")

    result = await runtime.run(agent, "go")

    assert result.output == "ready"
    (answer,) = await answers_of(runtime, result.run_id)
    assert answer.response.notes == ("the session ended: the program was silent for 1 seconds",)
    assert alive("runner-idle") == 0


# --- ends ------------------------------------------------------------------------------------------------------------


async def test_a_turn_that_takes_too_long_is_ended_with_all_that_it_started(runtime: Runtime) -> None:
    code = """
    import subprocess
    subprocess.Popen(["python3", "-c", "import time; time.sleep(600)", "runner-late"], start_new_session=True)
    print("started", flush=True)
    time.sleep(600)
    """

    result = await runtime.run(command(*program(code, "runner-late"), timeout="1s"), "go", check=False)

    assert (result.phase, result.reason) == ("failed", "timeout")
    assert alive("runner-late") == 0


@pytest.mark.parametrize("protocol", ["text", "jsonl", "terminal"])
async def test_a_run_that_is_cancelled_leaves_no_process(runtime: Runtime, protocol: str) -> None:
    mark, run_id = f"runner-cancel-{protocol}", runtime.inside.new_run_id()
    code = """
    import subprocess
    subprocess.Popen(["python3", "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
    print('{"type": "text", "text": "started"}', flush=True)
    time.sleep(600)
    """
    agent = command(*program(code, mark), protocol=protocol)
    cancelled = False
    async for item in runtime.stream(agent, "go", run_id=run_id):
        if isinstance(item, Streamed) and "started" in getattr(item.delta, "text", "") and not cancelled:
            assert alive(mark) >= 2
            cancelled = True
            await runtime.runs.cancel(run_id)

    assert (await runtime.resume(run_id, check=False)).phase == "cancelled"
    assert alive(mark) == 0


async def test_a_program_that_waits_for_a_result_ends_when_its_run_does(runtime: Runtime) -> None:
    @tool(effect="read")
    async def forever() -> str:
        """Never come back."""
        await asyncio.Event().wait()
        return ""

    mark, run_id = "runner-waits", runtime.inside.new_run_id()
    agent = speaks_lines("hear()\nsay('tool_call', name='forever', arguments={})\nhear()", tools=[forever], mark=mark)
    running = asyncio.create_task(runtime.run(agent, "go", run_id=run_id, check=False))
    while "tool.started" not in [type_of(event) for _, event in await _facts(runtime, run_id)]:
        await asyncio.sleep(0.01)
    assert alive(mark) > 0

    await runtime.runs.cancel(run_id)

    assert (await running).phase == "cancelled"
    assert alive(mark) == 0
