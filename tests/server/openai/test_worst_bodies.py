"""The worst bodies that somebody may send: the event loop goes on, and what is read is read once, in linear time."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from foliot.engine.driver import journal as loading
from foliot.kernel.json_texts import MOST_VALUES
from foliot.kernel.messages import Media
from foliot.kernel.run.events import RunCreated
from foliot.runtime.runtime import Runtime
from foliot.server.openai import content
from foliot.server.routes import openai as routes
from tests.loop_watch import watched_steps

LONGEST_STEP = 1.0
NOBODY = b'{"role":"nobody","content":"a"}'  # refused, when everything before it has been read


def chat(*messages: bytes) -> bytes:
    return b'{"model":"echo","messages":[' + b",".join(messages) + b"]}"


SAID = b'{"role":"assistant","content":"a"}'
CALLS = b",".join([b'{"id":"a","function":{"name":"x","arguments":"{}"}}'] * 40_000)
WORST = {
    "a message in 75,000 pieces": chat(*[SAID] * 75_000, NOBODY),
    "calls of one name": chat(
        b'{"role":"assistant","tool_calls":[' + CALLS + b"]}", b'{"role":"tool","tool_call_id":"b","content":"a"}'
    ),
    "names that may be repeated": chat(b'{"role":"user","content":[' + b'{"a:":[]},' * 80_000 + b"{}]}"),
}


@pytest.mark.parametrize("body", WORST.values(), ids=WORST)
async def test_no_body_holds_the_process(http: httpx.AsyncClient, body: bytes) -> None:
    with watched_steps() as steps:
        answer = await http.post("/v1/chat/completions", content=body)

    assert answer.status_code == 400
    assert "values" not in answer.json()["error"]["message"]
    assert steps.longest < LONGEST_STEP, f"one step of the event loop took {steps.longest:.2f} s"


@pytest.mark.parametrize(
    ("path", "value"), [("/v1/chat/completions", b'"\\""'), ("/v1/tasks", b"1"), ("/v1/policies/explain", b"[[]]")]
)
async def test_a_body_of_too_many_values_is_refused_before_it_is_read(
    http: httpx.AsyncClient, path: str, value: bytes
) -> None:
    with watched_steps() as steps:
        answer = await http.post(path, content=b'{"input":[' + (value + b",") * MOST_VALUES + b"1]}")

    assert answer.status_code == 400
    assert f"more than {MOST_VALUES:,} values" in answer.text
    assert steps.longest < LONGEST_STEP, f"one step of the event loop took {steps.longest:.2f} s"


async def test_signs_in_texts_are_no_values(http: httpx.AsyncClient) -> None:
    text = '{"a": [1, "\\"'
    said = msgspec.json.encode({"model": "second", "messages": [{"role": "user", "content": text * 100_000}]})

    answer = await http.post("/v1/chat/completions", content=said)

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Finished."


async def test_a_large_image_is_read_stored_and_told_beside_the_loop(
    runtime: Runtime, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, set[int]] = {}

    def noted(module: Any, name: str) -> None:
        work: Callable[..., Any] = getattr(module, name)

        def noting(*given: Any, **named: Any) -> Any:
            where.setdefault(name, set()).add(threading.get_ident())
            return work(*given, **named)

        monkeypatch.setattr(module, name, noting)

    noted(routes, "read_chat")
    noted(content, "_base64")
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 20_000).decode()
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "look"}]

    answer = await http.post(
        "/v1/chat/completions", json={"model": "echo", "messages": [{"role": "user", "content": parts}]}
    )

    assert answer.status_code == 200
    (info,) = await runtime.inside.runs.journal.list()
    noted(loading, "check")
    created = (await runtime.inside.runs.facts(info.id))[0][1]
    assert isinstance(created, RunCreated)
    assert [part.data for part in created.input[0].parts if isinstance(part, Media)] == [image.partition(",")[2]]
    assert {*where} == {"read_chat", "_base64", "check"}
    assert threading.get_ident() not in set[int]().union(*where.values())


async def test_base64_is_checked_across_its_pieces(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_PIECE", 8)
    for data, status in {
        "QUJDREVGR0hJSg==": 200,
        "QUJDREVG": 200,
        "QUJDRA==QUJDREVG": 400,
        "QUJDREVGQ": 400,
        "QUJDREVG\u00e9": 400,
    }.items():
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        said = {"model": "echo", "messages": [{"role": "user", "content": [part]}]}
        assert (await http.post("/v1/chat/completions", json=said)).status_code == status, data
