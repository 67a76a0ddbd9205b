"""Errors of a real store in the middle of a call: nobody is asked, nothing is done twice, and the run ends well."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.kernel.run.codec import type_of

ENDS = 60.0
# While a state is in the table, whoever adds to a journal gets it.
TROUBLE = """
CREATE TABLE trouble (state text);
CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE told text;
BEGIN
    SELECT state INTO told FROM trouble LIMIT 1;
    IF told IS NOT NULL THEN RAISE EXCEPTION 'as told' USING ERRCODE = told; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER trouble AFTER INSERT ON event FOR EACH STATEMENT EXECUTE FUNCTION trouble();
"""


async def test_what_the_store_cannot_do_now_is_tried_again_while_the_lease_lives(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foliot.engine.driver.appends")
    payments = 0
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(effect="once")
    async def pay() -> str:
        nonlocal payments
        begun.set()
        await go.wait()
        payments += 1
        return "paid"

    model = ScriptedModel({"turns": [{"call": {"pay": {}}}, {"say": "paid once"}], "loop": True})
    agent = Agent("clerk", model=model, tools=[pay])
    states = ["55P03", "25006", "42P01", "57014", "P0001", "XX000", "53100"]
    async with Runtime(postgres_url, lease_seconds=120.0) as runtime:
        client = await asyncpg.connect(postgres_url)
        await client.execute(TROUBLE)
        for number, state in enumerate(states, start=1):
            begun.clear()
            go.clear()
            caplog.clear()
            running = asyncio.create_task(runtime.run(agent, "go", run_id=f"r{number}"))
            await asyncio.wait_for(begun.wait(), ENDS)
            await client.execute("INSERT INTO trouble VALUES ($1)", state)
            go.set()
            async with asyncio.timeout(ENDS):
                while "an append is tried again" not in caplog.text:
                    await asyncio.sleep(0.01)
            await client.execute("DELETE FROM trouble")
            result = await asyncio.wait_for(running, ENDS)
            assert result.output == "paid once", state
            assert payments == number
            seen = [type_of(event) for _, event in await runtime.inside.runs.facts(f"r{number}")]
            assert seen.count("run.claimed") == seen.count("tool.finished") == 1
            assert "run.waiting" not in seen
        await client.close()
