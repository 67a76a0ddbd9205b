"""The other sides of the backends: one program behind HTTP, contract envelopes, callbacks, gRPC, NATS and MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from foliot.bus.nats_link import NatsLink
from foliot.testing.tool_suite import NOT_UTF8, Failed, Program, Seen
from tests.tools.serving.bus import result as nats_result
from tests.tools.serving.bus import settled

KEY = "Idempotency-Key"


def envelope(request_id: str, result: Any = None, *, error: str = "") -> bytes:
    answer: dict[str, Any] = {"tool_contract_version": "v1", "request_id": request_id, "status": "ok"}
    if error:
        failure = {"code": "execution_failed", "reason": "tool_backend_failure", "message": error, "retryable": False}
        answer |= {"status": "error", "error": failure}
    else:
        answer["output"] = {"result": result}
    return json.dumps(answer).encode()


async def answered(program: Program, asked: dict[str, Any], key: str) -> bytes:
    """The envelope with which a service of the contract answers, or the bytes that it sends instead."""
    id, arguments = asked["request_id"], asked.get("input") or {}
    match arguments.get("do"):
        case "twice":
            return envelope(id, "first") + b"\n" + envelope(id, "second")
        case "wrong_id":
            return envelope("somebody-elses", "theirs")
    try:
        value = await program.act(arguments, key)
    except Failed as error:
        return envelope(id, error=str(error))
    return value if value is NOT_UTF8 else envelope(id, value)


class PlainHttp:
    """Any web service: JSON in, text out, a status when it cannot."""

    def __init__(self, program: Program) -> None:
        self.program = program

    async def __call__(self, request: web.Request) -> web.Response:
        try:
            value = await self.program.act(json.loads(await request.read()), request.headers.get(KEY, ""))
        except Failed as error:
            return web.Response(status=422, text=str(error))
        body = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        return web.Response(body=body, content_type="text/plain", charset="utf-8")


class External:
    """A service of the contract over HTTP."""

    def __init__(self, program: Program) -> None:
        self.program = program

    async def __call__(self, request: web.Request) -> web.Response:
        asked = json.loads(await request.read())
        return web.Response(
            body=await answered(self.program, asked, request.headers.get(KEY, "")), content_type="application/json"
        )


class Pushing:
    """Says 202 to every call, and pushes what comes of it to the address it was told, as often as it likes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tasks: set[asyncio.Task[None]] = set()
        self.statuses: list[int] = []

    async def __call__(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.Response(status=202)
        asked = json.loads(await request.read())
        task = asyncio.create_task(self._push(asked, request.headers.get(KEY, "")))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return web.Response(status=202)

    async def _push(self, asked: dict[str, Any], key: str) -> None:
        body = await answered(self.program, asked, key)
        async with aiohttp.ClientSession() as session:
            for part in body.split(b"\n") if (asked.get("input") or {}).get("do") == "twice" else [body]:
                async with session.post(asked["callback_url"], data=part) as answer:
                    self.statuses.append(answer.status)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def over_nats(link: NatsLink, name: str, program: Program) -> AsyncIterator[None]:
    """A tool as any program would serve it: a subscription, JSON, several calls at a time."""
    client: Any = await link.reached()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(call: dict[str, Any], key: str) -> None:
        subject = f"tool.result.{call['id']}"
        match call["arguments"].get("do"):
            case "twice":
                answers = [nats_result(call, "first"), nats_result(call, "second")]
            case "wrong_id":
                answers = [nats_result({**call, "execution_id": "tool-exec-v1-theirs"}, "theirs")]
            case _:
                try:
                    value = await program.act(call["arguments"], key)
                except Failed as error:
                    answers = [nats_result(call, error=str(error))]
                else:
                    # Bytes that are no message are nobody's answer: the call is still answered after them.
                    said = "" if value is NOT_UTF8 else value if isinstance(value, str) else json.dumps(value)
                    answers = [*([NOT_UTF8] if value is NOT_UTF8 else []), nats_result(call, said)]
        for each in answers:
            await client.publish(subject, each)

    async def hear(msg: Any) -> None:
        heard = json.loads(msg.data)
        task = asyncio.create_task(answer(heard["payload"], heard.get("meta", {}).get("idempotency_key", "")))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    subscription = await client.subscribe(f"tool.execute.{name}", cb=hear)
    await settled(client)
    try:
        yield
    finally:
        await subscription.unsubscribe()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class InAnotherProcess:
    """A counterpart that writes down what it sees in a file, and is released by another."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "seen.jsonl"
        self.go = folder / "go"

    def seen(self) -> list[Seen]:
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [Seen(line["arguments"], line["key"]) for line in lines]

    def release(self) -> None:
        self.go.touch()
