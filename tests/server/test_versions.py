"""Nobody writes over what they have not seen: two servers with one store, on both databases."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings
from foliot.store.base import Document
from tests.taking_missing import TAKES_MISSING

PATH = "/v1/model-endpoints"
ONE = f"{PATH}/local"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two servers, each with connections of its own."""
    store = {} if request.param == "sqlite" else {"store": request.getfixturevalue("postgres_url")}
    settings = load_settings({"home": str(tmp_path), **store}, {})
    async with AsyncExitStack() as stack:
        clients: list[httpx.AsyncClient] = []
        for _ in range(2):
            runtime = await stack.enter_async_context(Runtime(settings=settings))
            transport = httpx.ASGITransport(create_app(runtime, settings=settings, auth=Anonymous()))
            client = httpx.AsyncClient(
                transport=transport, base_url="http://localhost", event_hooks=TAKES_MISSING, timeout=110
            )
            clients.append(await stack.enter_async_context(client))
        yield clients


async def made(http: httpx.AsyncClient, **spec: Any) -> Document:
    body = {"metadata": {"name": "local"}, "spec": {"provider": "mock", "default_model": "m", **spec}}
    answer = await http.post(PATH, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def labelled(name: str, **metadata: str) -> Document:
    return {"metadata": {"labels": {name: "yes"}, **metadata}}


async def test_a_patch_that_names_a_version_is_refused_when_it_has_passed(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    old = (await made(http))["metadata"]["resourceVersion"]
    await made(other, base_url="http://127.0.0.1:1")

    refused = [
        await http.patch(ONE, json=labelled("a", resourceVersion=old)),
        await http.patch(ONE, json=labelled("a", resource_version=old)),
        await http.patch(ONE, json=labelled("a", resourceVersion=old), params={"dryRun": "true"}),
        await http.patch(ONE, json=labelled("a"), headers={"If-Match": f'"{old}"'}),
        await http.put(ONE, json=await declared(http, resourceVersion=old)),
        await http.post(PATH, json=await declared(http, resourceVersion=old)),
        await http.put(f"{ONE}/status", json={"metadata": {"resourceVersion": old}, "status": {"phase": "Ready"}}),
        await http.post("/v1/apply", json=await declared(http, resourceVersion=old)),
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(409, "conflict")] * len(refused)
    deleted = await http.delete(ONE, headers={"If-Match": f'"{old}"'})
    assert deleted.status_code == 412
    stored = (await http.get(ONE)).json()
    assert stored["spec"]["base_url"] == "http://127.0.0.1:1"
    assert not stored["metadata"].get("labels")


async def declared(http: httpx.AsyncClient, **metadata: str) -> Document:
    document = (await http.get(ONE)).json()
    return {**document, "metadata": {**document["metadata"], **metadata}, "spec": {"provider": "mock"}}


async def test_a_patch_at_the_current_version_is_stored(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    version = (await made(http))["metadata"]["resourceVersion"]

    answer = await other.patch(ONE, json=labelled("a", resourceVersion=version))

    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["labels"] == {"a": "yes"}


async def test_what_is_no_version_matches_nothing(servers: list[httpx.AsyncClient]) -> None:
    http, _ = servers
    await made(http)
    for word in ("any", "present", "absent", "1.0"):
        answers = [
            await http.patch(ONE, json=labelled("a", resourceVersion=word)),
            await http.put(ONE, json=await declared(http, resourceVersion=word)),
            await http.put(ONE, json=await declared(http, resourceVersion=""), headers={"If-Match": word}),
            await http.put(f"{ONE}/status", json={"phase": "Ready"}, headers={"If-Match": word}),
            await http.delete(ONE, headers={"If-Match": word}),
        ]
        assert [each.status_code in (409, 412, 422) for each in answers] == [True] * 5, [each.text for each in answers]
    assert (await http.get(ONE)).json()["spec"]["default_model"] == "m"


async def test_patches_without_a_version_are_all_kept(servers: list[httpx.AsyncClient]) -> None:
    await made(servers[0])
    names = [f"n{number}" for number in range(24)]

    answers = await asyncio.gather(
        *(servers[number % 2].patch(ONE, json=labelled(name)) for number, name in enumerate(names))
    )

    assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
    assert sorted((await servers[1].get(ONE)).json()["metadata"]["labels"]) == sorted(names)


async def test_patches_of_one_spec_are_all_kept(servers: list[httpx.AsyncClient]) -> None:
    """Each is judged by what it is merged onto, and takes its turn when another one was faster."""
    await made(servers[0], options={"begun": "1"})
    names = [f"o{number}" for number in range(16)]

    answers = await asyncio.gather(
        *(servers[number % 2].patch(ONE, json={"spec": {"options": {name: "1"}}}) for number, name in enumerate(names))
    )

    assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
    assert sorted((await servers[1].get(ONE)).json()["spec"]["options"]) == sorted(["begun", *names])


# --- work that was accepted ------------------------------------------------------------------------------------------

TASK = "/v1/tasks/t"


def task(topic: str = "clocks", **more: Any) -> Document:
    metadata = {"name": "t", **more.pop("metadata", {})}
    spec = {"agent": "writer", "input": {"topic": topic}, **more}
    return {"apiVersion": "foliot.dev/v1", "kind": "Task", "metadata": metadata, "spec": spec}


async def accepted(http: httpx.AsyncClient) -> Document:
    """A Task that was applied, and whose work was accepted; as it is declared."""
    agent = {"metadata": {"name": "writer"}, "spec": {"model_ref": "local", "prompt": "You write."}}
    await made(http)
    assert (await http.post("/v1/agents", json=agent)).is_success
    answer = await http.post("/v1/apply", json=task(), params={"run": "true"})
    assert answer.json()["tasks"] == [{"namespace": "default", "name": "t", "new": True}], answer.text
    return await stored_task(http)


async def stored_task(http: httpx.AsyncClient) -> Document:
    (found,) = (await http.get("/v1/resources", params={"kind": "Task"})).json()["items"]
    return found


async def test_the_spec_of_accepted_work_cannot_be_written(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    before = await accepted(http)
    version = {"If-Match": before["metadata"]["resourceVersion"]}

    refused = [
        await other.patch(TASK, json={"spec": {"input": {"topic": "rivers"}}}),
        await other.patch(TASK, json={"spec": {"priority": "high"}}, params={"dryRun": "true"}),
        await other.put(TASK, json=task("rivers"), headers=version),
        await other.post("/v1/tasks", json=task("rivers")),
        await other.post("/v1/tasks", json=task(mode="template")),
        await other.post("/v1/apply", json=task("rivers")),
        await other.post("/v1/apply", json=task("rivers"), params={"dryRun": "true"}),
        await other.post("/v1/apply", json=task("rivers", mode="template")),
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(409, "conflict")] * len(refused)
    assert "labels and annotations" in refused[0].text
    after = await stored_task(http)
    assert (after["spec"], after["metadata"]) == (before["spec"], before["metadata"])


async def test_labels_and_annotations_of_accepted_work_may_be_written(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    await accepted(http)

    patched = await other.patch(TASK, json=labelled("one"))
    assert patched.status_code == 200, patched.text
    version = {"If-Match": patched.json()["metadata"]["resourceVersion"]}
    put = await other.put(TASK, json=task(metadata={"annotations": {"two": "yes"}}), headers=version)
    assert put.status_code == 200, put.text
    applied = await other.post("/v1/apply", json=task(metadata={"labels": {"three": "yes"}}), params={"run": "true"})
    assert applied.json()["tasks"] == [{"namespace": "default", "name": "t", "new": False}], applied.text

    stale = await other.put(TASK, json=task(), headers=version)
    assert stale.status_code == 409
    assert (await stored_task(http))["metadata"]["labels"] == {"three": "yes"}


async def test_work_that_no_resource_declares_cannot_be_written_at_all(servers: list[httpx.AsyncClient]) -> None:
    http, other = servers
    await accepted(http)
    assert (await http.post("/v1/tasks", json={**task(), "metadata": {"name": "posted"}})).status_code == 201
    template = {**task(mode="template"), "metadata": {"name": "posted"}}

    refused = [
        await other.patch("/v1/tasks/posted", json=labelled("one")),
        await other.put("/v1/tasks/posted", json=template, headers={"If-Match": "*"}),
        await other.post("/v1/tasks", json=template),
        await other.post("/v1/apply", json={**task("rivers"), "metadata": {"name": "posted"}}),
        await other.post("/v1/apply", json=template),
    ]

    assert [(each.status_code, each.json()["code"]) for each in refused] == [(409, "conflict")] * len(refused)


async def test_a_task_that_is_changed_while_it_is_accepted_says_what_its_work_was_asked(
    servers: list[httpx.AsyncClient],
) -> None:
    http, other = servers
    await accepted(http)

    async def change(name: str) -> int:
        for _ in range(5000):
            answer = await other.patch(f"/v1/tasks/{name}", json={"spec": {"input": {"topic": "x"}}})
            if answer.status_code != 404:
                return answer.status_code
            await asyncio.sleep(0)  # a read of a file waits for nobody
        raise AssertionError("the Task was not declared")

    changed: list[int] = []
    for name in (f"n{number}" for number in range(6)):
        applied, status = await asyncio.gather(
            http.post("/v1/apply", json={**task(), "metadata": {"name": name}}, params={"run": "true"}), change(name)
        )
        (taken,) = applied.json()["tasks"]
        found = (await http.get("/v1/resources", params={"kind": "Task"})).json()["items"]
        (declared_input,) = [each["spec"]["input"] for each in found if each["metadata"]["name"] == name]
        assert declared_input["topic"] == ("x" if status == 200 else "clocks")
        assert ("error" in taken) == (status == 200), (taken, status)
        changed.append(status)
    assert {*changed} <= {200, 409}


async def test_a_patch_keeps_text_as_it_was_written(servers: list[httpx.AsyncClient]) -> None:
    """As POST and files do: 1.10 is no number where text is expected, whatever its spelling."""
    http = servers[0]
    words = ("1.10", "1e3", "10.00", "0.0", "12345678901234567890123", "true", '"2.10"', "42")
    named = ", ".join(f'"k{number}": {word}' for number, word in enumerate(words))
    texts = {f"k{number}": word.strip('"') for number, word in enumerate(words)}
    for path, body in (
        ("/v1/secrets", '{"metadata": {"name": "s"}, "spec": {"stringData": {"kept": 1.10}}}'),
        ("/v1/agents", '{"metadata": {"name": "s"}, "spec": {"modelRef": "m", "limits": {"maxSteps": 3}}}'),
    ):
        assert (await http.post(path, content=body)).is_success
        metadata = f'{{"labels": {{{named}, "gone": 1.50}}, "annotations": {{{named}}}}}'
        spec = f'{{"stringData": {{{named}}}}}' if "secrets" in path else '{"limits": {"maxSteps": 5}}'
        assert (await http.patch(f"{path}/s", content=f'{{"metadata": {metadata}, "spec": {spec}}}')).is_success
        answer = await http.patch(f"{path}/s", content='{"metadata": {"labels": {"gone": null}}}')

        assert answer.is_success, answer.text
        assert (answer.json()["metadata"]["labels"], answer.json()["metadata"]["annotations"]) == (texts, texts)
    assert answer.json()["spec"]["limits"]["max_steps"] == 5
    wanted = {name: base64.b64encode(text.encode()).decode() for name, text in {**texts, "kept": "1.10"}.items()}
    same = await http.patch("/v1/secrets/s", json={"spec": {"data": wanted}})
    before = (await http.get("/v1/secrets/s")).json()["metadata"]
    assert same.json()["metadata"]["resourceVersion"] == before["resourceVersion"]
    assert before["generation"] == 2  # the values are those, so nothing has changed
