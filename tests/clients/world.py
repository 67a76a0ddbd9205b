"""The server that clients are tried against: agents whose answers are known, behind a token."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens

MANIFESTS = """\
kind: ModelEndpoint
metadata: {name: scripted}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: echo}
      count: input
      turns: [{say: "You said {input}.", chunk: 4, usage: {input_tokens: 7, output_tokens: 5}}]
    - match: {agent: rememberer}
      count: input
      turns: [{say: "First {first_input}, now {input}."}]
    - match: {agent: forecaster}
      turns: [{call: {get_weather: {city: Oslo}}}, {say: "It says {last_result}."}]
    - match: {agent: planner}
      turns:
        - call: [{get_weather: {city: Oslo}}, {get_weather: {city: Rome}}]
        - {say: "Both are known."}
    - match: {agent: clerk}
      turns: [{say: "Let me look.", call: {add: {one: 2, other: 3}}}, {say: "It is {last_result}."}]
    - match: {agent: shaper}
      count: input
      turns: [{say: {verdict: fine, points: 3}}]
    - match: {agent: finisher}
      turns: [{call: {final_result: {verdict: fine, points: 3}}}]
---
kind: Agent
metadata: {name: clerk}
spec: {model_ref: scripted, tools: [add]}
"""
PLAIN = ("echo", "rememberer", "forecaster", "planner", "shaper", "finisher")


class Address(NamedTuple):
    """Where the world is, as a base address of OpenAI's API, and the key to it."""

    base: str
    key: str


def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


@asynccontextmanager
async def world(home: Path) -> AsyncGenerator[Address]:
    settings = load_settings({"home": str(home)}, {})
    agents = (f"---\nkind: Agent\nmetadata: {{name: {name}}}\nspec: {{model_ref: scripted}}\n" for name in PLAIN)
    bundle = parse_text(MANIFESTS + "".join(agents), "world.yaml")
    bundle.raise_for_errors()
    async with Runtime(settings=settings, tools=[add]) as runtime:
        await runtime.resources.apply([item.document for item in bundle.items])
        database = runtime.inside.tasking.database
        auth = TokenAuth(database, local=True, settings=settings)
        _, key = await SqlTokens(database).create("client", namespaces=["default"], roles=["operator"], now=time.time())
        async with HttpServer(create_app(runtime, settings=settings, auth=auth), Listen("127.0.0.1", 0)) as server:
            yield Address(f"{server.url}/v1", key)
        await auth.close()
