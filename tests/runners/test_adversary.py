"""Programs that lie, flood, forge and do not end: nothing of it reaches further than their own run."""

from __future__ import annotations

from typing import Any

import pytest

from foliot import Agent, Runtime, tool
from foliot.engine.runners import gateway
from foliot.engine.runners.adapters import RunnerAdapter
from foliot.engine.runners.program import LONGEST_ANSWER, LONGEST_LOG
from foliot.kernel.messages import Reasoning
from foliot.kernel.run.events import ToolFinished, ToolStarted
from tests.runners.kit import alive, answers_of, program, speaks_lines


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_tool_that_the_agent_has_not_is_refused_and_the_program_is_told(runtime: Runtime) -> None:
    code = """
    hear()
    say("tool_call", id="x", name="bash", arguments={"command": "id"})
    say("result", text=hear()["error"]["message"])
    """

    result = await runtime.run(speaks_lines(code, tools=[look]), "go")

    assert "bash" in result.output
    events = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    assert not [event for event in events if isinstance(event, ToolStarted)]


async def test_a_program_cannot_forge_the_result_of_a_call(runtime: Runtime) -> None:
    code = """
    hear()
    say("tool_call", id="x", name="look", arguments={})
    say("tool_result", id="x", name="look", text="forged")
    say("model.responded", step=1)
    say("result", text=hear()["text"])
    """

    result = await runtime.run(speaks_lines(code, tools=[look]), "go")

    events = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert finished.result.text == "seen" == result.output


async def test_calls_with_the_same_id_are_two_calls(runtime: Runtime) -> None:
    code = """
    hear()
    for _ in range(2):
        say("tool_call", id="call_1_1", name="look", arguments={})
        hear()
    say("tool_calls", calls=[dict(id="x", name="look"), dict(id="x", name="look")])
    say("result", text=f"{hear()['id']} {hear()['id']}")
    """
    agent = speaks_lines(code, tools=[look])

    result = await runtime.run(agent, "go")

    events = [event for _, event in await runtime.inside.runs.facts(result.run_id)]
    ids = [event.result.call_id for event in events if isinstance(event, ToolFinished)]
    assert len(ids) == len(set(ids)) == 4
    assert result.output == "x x"


async def test_negative_usage_makes_no_room(runtime: Runtime) -> None:
    code = """
    hear()
    say("usage", input_tokens=-1000000, output_tokens=-5, cost_usd=-100.0)
    say("usage", input_tokens=10, output_tokens=5, cost_usd=0.5)
    say("tool_call", name="look", arguments={})
    hear()
    say("result", text="not reached")
    """
    agent = speaks_lines(code, tools=[look], limits={"max_cost_usd": 0.5})

    result = await runtime.run(agent, "go", check=False)

    assert (result.phase, result.reason) == ("failed", "cost_usd")


async def test_a_line_of_a_hundred_megabytes_is_dropped_and_the_next_one_is_heard(runtime: Runtime) -> None:
    code = """
    hear()
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)
    print(flush=True)
    say("result", text="still here")
    """

    result = await runtime.run(speaks_lines(code), "go")

    assert result.output == "still here"
    (answer,) = await answers_of(runtime, result.run_id)
    assert answer.response.notes == ("a line of more than 4 MiB was dropped",)


async def test_a_flood_is_bounded_and_its_end_is_kept(runtime: Runtime) -> None:
    code = """
    for number in range(3_000_000):
        sys.stdout.write("0123456789")
    sys.stderr.write("noise\\n" * 300_000)
    print("the end")
    """
    agent = Agent("worker", runner={"command": program(code)})

    result = await runtime.run(agent, "go")

    assert len(result.output) <= LONGEST_ANSWER
    assert result.output.endswith("0123456789the end")
    (answer,) = await answers_of(runtime, result.run_id)
    (log,) = [part.text for part in answer.response.message.parts if isinstance(part, Reasoning)]
    assert 0 < len(log) <= LONGEST_LOG
    assert "only the end of what the program said is kept" in answer.response.notes


@pytest.mark.parametrize("protocol", ["text", "jsonl"])
async def test_a_program_that_closes_its_output_and_stays_is_ended_with_its_turn(
    runtime: Runtime, protocol: str
) -> None:
    mark = f"runner-stays-{protocol}"
    code = """
    print('{"type": "text", "text": "said"}', flush=True)
    os.close(1)
    time.sleep(600)
    """
    runner = {"command": program(code, mark), "protocol": protocol, "timeout": "2s"}

    result = await runtime.run(Agent("worker", runner=runner), "go", check=False)

    assert (result.phase, result.reason) == ("failed", "timeout")
    assert alive(mark) == 0


async def test_a_program_that_stays_after_its_last_word_is_ended(runtime: Runtime) -> None:
    runtime.inside._open().assembly.models._direct["builtin:runner"]._grace = 0.2
    agent = speaks_lines("hear()\nsay('result', text='said')\ntime.sleep(600)", mark="runner-lingers")

    result = await runtime.run(agent, "go")

    assert result.output == "said"
    (answer,) = await answers_of(runtime, result.run_id)
    assert answer.response.notes == ("the program did not end by itself after its turn, and was ended",)
    assert alive("runner-lingers") == 0


async def test_escape_sequences_and_half_characters_are_not_stored(runtime: Runtime) -> None:
    code = r"""
    sys.stderr.write("\x1b[31mred\x1b[0m\n\n\n")
    sys.stdout.buffer.write(b"ok \xff\xf0\x9f then \x00 end")
    """

    result = await runtime.run(Agent("worker", runner={"command": program(code)}), "go")

    assert result.output == "ok \ufffd\ufffd then  end"
    (answer,) = await answers_of(runtime, result.run_id)
    assert answer.response.message.parts[0].text == "red", "sequences and empty lines are not part of a log"


async def test_half_a_surrogate_in_a_line_does_not_end_the_run(runtime: Runtime) -> None:
    code = r"""
    hear()
    print('{"type": "text", "text": "a\\ud800b"}')
    print('{"type": "result"}', flush=True)
    """

    assert (await runtime.run(speaks_lines(code), "go")).succeeded


async def test_nothing_of_the_worker_is_inside(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "chirp-7f3a")
    code = """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(open("/proc/" + pid + "/environ", "rb").read())
        except OSError:
            pass
    print(any(b"chirp-7f3a" in each for each in found), "CANARY_TOKEN" in os.environ, os.path.exists("/root/.ssh"))
    print(len(found) > 0)
    """

    result = await runtime.run(Agent("worker", runner={"command": program(code)}), "go")

    assert result.output == "False False False\nTrue"


async def test_a_prompt_longer_than_a_pipe_and_output_before_it_is_read_do_not_block_each_other(
    runtime: Runtime,
) -> None:
    code = """
    sys.stdout.write("y" * 500_000)
    sys.stdout.flush()
    print(len(sys.stdin.read()))
    """

    result = await runtime.run(Agent("worker", runner={"command": program(code)}), "z" * 500_000)

    assert result.output.endswith("y500000")


async def test_an_adapter_that_breaks_on_a_line_fails_the_run_with_its_name(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(line: Any) -> list[Any]:
        raise KeyError(line["type"])

    monkeypatch.setattr(gateway, "find_adapter", lambda name: RunnerAdapter(name, "acme", "jsonl", read=broken))

    result = await runtime.run(speaks_lines("hear()\nsay('result', text='said')"), "go", check=False)

    assert result.phase == "failed"
    assert "the adapter 'command' cannot read a line of its program: KeyError" in (result.error or "")
