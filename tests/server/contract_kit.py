"""A real server with real work in it, in a thread of its own: for those who call it from outside, as clients do."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.queue.placement import Offer
from foliot.tools.function import tool

WITHIN = 60.0

MANIFESTS = """
kind: ModelEndpoint
metadata: {name: payer-model, labels: {app: shop}}
spec:
  provider: scripted
  default_model: scripted
  script: [{call: {pay: {amount: 5}}}, {say: "Paid: {last_result}."}]
---
kind: ModelEndpoint
metadata: {name: talker}
spec: {provider: scripted, default_model: scripted, script: [{say: "Hello there."}]}
---
kind: Secret
metadata: {name: hook}
spec: {stringData: {value: correct-horse-battery}}
---
kind: Tool
metadata: {name: lookup}
spec: {type: http, endpoint: "http://127.0.0.1:9/lookup", description: Looks things up.}
---
kind: ToolPermission
metadata: {name: pay}
spec: {tool_ref: pay, operation_rules: [{verdict: approval_required}]}
---
kind: Memory
metadata: {name: notes}
spec: {type: kv}
---
kind: McpServer
metadata: {name: things}
spec: {transport: http, endpoint: "http://127.0.0.1:9/mcp"}
---
kind: AgentPolicy
metadata: {name: careful}
spec: {max_tokens_per_run: 100000, target_tasks: [nothing]}
---
kind: ReferenceGrant
metadata: {name: to-others}
spec: {from: [{namespace: others}], to: [{kind: ModelEndpoint}]}
---
kind: AgentRole
metadata: {name: clerk}
spec: {description: Does as told., permissions: ["tool:lookup:invoke"]}
---
kind: Agent
metadata: {name: payer, labels: {app: shop}}
spec: {model_ref: payer-model, tools: [pay]}
---
kind: Agent
metadata: {name: greeter}
spec: {model_ref: talker, prompt: Say hello., roles: [clerk]}
---
kind: Agent
metadata: {name: closer}
spec: {model_ref: talker}
---
kind: AgentSystem
metadata: {name: desk}
spec: {agents: [greeter, closer], graph: {greeter: {edges: [{to: closer}]}}}
---
kind: Task
metadata: {name: form}
spec: {agent: greeter, mode: template}
---
kind: TaskSchedule
metadata: {name: nightly}
spec: {task_ref: form, schedule: "0 3 * * *"}
---
kind: TaskWebhook
metadata: {name: push}
spec: {task_ref: form, auth: {profile: generic, secret_ref: hook}}
---
kind: TaskHook
metadata: {name: arrivals}
spec: {task_ref: form, source: shop, events: [source.change], suspend: true}
---
kind: Channel
metadata: {name: desk}
spec:
  type: webhook
  agent: greeter
  endpoint: "http://127.0.0.1:9/answers"
  auth: {secretRef: hook}
  suspend: true
  users: [{id: "42", user: ann}]
---
kind: Skill
metadata: {name: greeting}
spec: {description: How to greet., body: Say hello.}
---
kind: Worker
metadata: {name: planned}
spec: {region: north, max_concurrent_tasks: 2}
---
kind: Budget
metadata: {name: plenty}
spec: {window: day, limit: {tokens: 100000000}}
"""


@tool
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"{amount} euros"


@dataclass
class Site:
    """The address of a server, the token of an admin, and the names of what is there by kind."""

    url: str
    token: str
    runs: list[str] = field(default_factory=list[str])
    approvals: list[str] = field(default_factory=list[str])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=WITHIN)


@contextmanager
def serving(home: Path) -> Iterator[Site]:
    """A server on loopback, with a worker, until the end of the block."""
    began, stop = threading.Event(), threading.Event()
    told: dict[str, Any] = {}

    def work() -> None:
        try:
            asyncio.run(_serve(home, told, began, stop))
        except BaseException as error:
            told["error"] = error
            began.set()
            raise

    thread = threading.Thread(target=work, name="contract-server")
    thread.start()
    try:
        assert began.wait(WITHIN), "the server did not start"
        if "error" in told:
            raise told["error"]
        yield Site(told["url"], told["token"])
    finally:
        stop.set()
        thread.join(WITHIN)
        assert not thread.is_alive(), "the server did not stop"


async def _serve(home: Path, told: dict[str, Any], began: threading.Event, stop: threading.Event) -> None:
    settings = load_settings({"home": str(home), "request_rate": "0", "mcp_commands": sys.executable}, {})
    async with Runtime(settings=settings, tools=[pay]) as runtime:
        database = runtime.inside.tasking.database
        _, told["token"] = await SqlTokens(database).create("root", namespaces=("*",), roles=("admin",), now=0.0)
        auth = TokenAuth(database, local=True)
        app = create_app(runtime, settings=settings, auth=auth)
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
            worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=4), grace=0)
            working = asyncio.create_task(worker.run())
            told["url"] = server.url
            began.set()
            await asyncio.to_thread(stop.wait)
            worker.drain()
            await working
        await auth.close()


def furnish(site: Site) -> None:
    """Resources of every kind, tasks that have ended, and calls that wait for consent."""
    with site.client() as http:
        applied = http.post("/v1/apply", content=MANIFESTS, params={"allowMissing": "true"})
        assert applied.status_code == 200, applied.text
        for name, target in (("greet", {"agent": "greeter"}), ("round", {"system": "desk"})):
            _task(http, name, target)
            http.get(f"/v1/tasks/{name}/events")  # which ends with the task
        for number in range(4):
            _task(http, f"pay-{number}", {"agent": "payer"})
        site.approvals = _waiting(http, 4)
        site.runs = [run["metadata"]["name"] for run in http.get("/v1/runs?phase=succeeded").json()["items"]]


def _task(http: httpx.Client, name: str, target: dict[str, str]) -> None:
    body = {"metadata": {"name": name}, "spec": {**target, "input": {"topic": "hi"}}}
    made = http.post("/v1/tasks", json=body)
    assert made.status_code == 201, made.text


def _waiting(http: httpx.Client, count: int) -> list[str]:
    """The names of so many approvals, as soon as there are."""
    names: set[str] = set()
    with http.stream("GET", "/v1/tool-approvals/watch") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: ") and "resource" in (event := json.loads(line[6:])):
                names.add(event["resource"]["metadata"]["name"])
            if len(names) == count:
                break
    return sorted(names)
