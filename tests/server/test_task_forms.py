"""Tasks of a form that was checked before: the same document and the same command as if all of it had been checked."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foliot.resources.kinds import KINDS
from foliot.resources.reader import parse_text
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.bodies import _completed
from foliot.server.tasks.forms import LARGEST, MOST_FORMS, AskedTask, FormFields, TaskForms, fields_of
from foliot.settings.settings import Settings
from foliot.store.access.tokens import SqlTokens
from foliot.work.tasks.commands import BEGIN, command_of, content_digest, normalise

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True).filter(lambda name: name != "watch")
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
inputs = st.dictionaries(st.sampled_from(["topic", "audience", "größe", "a b"]), texts, min_size=1)
metadatas = st.fixed_dictionaries(
    {}, optional={"labels": st.dictionaries(names, names, max_size=2), "annotations": st.just({"note": "x y"})}
)
specs = st.one_of(st.just({"system": "desk"}), st.just({"agent": " writer "})).flatmap(
    lambda target: st.fixed_dictionaries(
        {},
        optional={
            "priority": st.sampled_from(["high", "URGENT", ""]),
            "timeout": st.sampled_from(["90m", "1h30m"]),
            "max_turns": st.integers(0, 5),
            "maxTurns": st.none(),
            "lane": names,
            "retry": st.just({"max_attempts": 3, "backoff": "2s"}),
            "messageRetry": st.just({"jitter": "equal", "non_retryable": ["Bad"]}),
            "requirements": st.just({"gpu": True}),
            "idempotency_key": st.just("once"),
        },
    ).map(lambda rest: {**target, **rest})
)


def body_of(spec: dict[str, Any], metadata: dict[str, Any], name: str, input: dict[str, Any], **more: Any) -> bytes:
    document = {**more, "metadata": {**metadata, "name": name}, "spec": {**spec, "input": input}}
    return json.dumps(document, ensure_ascii=False).encode()


def read(body: bytes, namespace: str | None = None) -> AskedTask:
    """What the reader of manifests makes of a body."""
    complete = partial(_completed, KINDS["Task"], None)
    bundle = parse_text(body, namespace=namespace, complete=complete)
    bundle.raise_for_errors()
    (loaded,) = bundle.items
    return AskedTask(loaded.document, command_of(loaded.document))


def fields(body: bytes, namespace: str | None = None) -> FormFields:
    found = fields_of(body, namespace)
    assert found is not None
    return found


@given(specs, metadatas, names, inputs, names, inputs, st.sampled_from([None, "team-a"]))
def test_a_known_form_with_another_name_and_input_is_what_the_reader_makes_of_it(
    spec: dict[str, Any],
    metadata: dict[str, Any],
    first: str,
    first_input: dict[str, str],
    second: str,
    second_input: dict[str, str],
    namespace: str | None,
) -> None:
    one = body_of(spec, metadata, first, first_input)
    other = body_of(spec, metadata, second, second_input)
    forms = TaskForms()
    forms.learn(fields(one, namespace), read(one, namespace))

    found = forms.read(fields(other, namespace))

    wanted = read(other, namespace)
    assert found is not None
    assert found.document == wanted.document
    assert json.dumps(found.document) == json.dumps(wanted.document)
    assert found.command == (command := normalise(wanted.command))
    assert found.content in (None, content_digest(command))
    assert (found.content is None) == (command.message == BEGIN)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"kind: Task",
        b"[1]",
        b'{"metadata": {"name": "a", "name": "b"}, "spec": {"system": "s", "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {"topic": "x", "topic": "y"}}}',
        b'{"metadata": {"name": " a"}, "spec": {"system": "s", "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "watch"}, "spec": {"system": "s", "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "A/b"}, "spec": {"system": "s", "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "i-0123456789abcdef0123456789"}, "spec": {"system": "s", "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {"topic": 1}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {" topic": "x"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {"topic": "\\u0000"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {"topic": "\xff"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s"}}',
        b'{"metadata": {"name": "a"}, "spec": {"max_turns": 2.10, "input": {"topic": "x"}}}',
        b'{"metadata": {"name": "a"}, "spec": 1} {"metadata": {}}',
        b'{"metadata": ["name"], "spec": {"input": {"topic": "x"}}}',
        b'{"metadata": {"name": "a"}, "spec": {"system": "s", "input": {"topic": "' + b"x" * LARGEST + b'"}}}',
    ],
)
def test_what_is_unusual_is_left_to_the_reader(body: bytes) -> None:
    assert fields_of(body, None) is None


def test_a_form_is_that_of_one_namespace_and_every_word_of_it_counts() -> None:
    forms = TaskForms()
    body = body_of({"system": "desk"}, {}, "one", {"topic": "x"})
    forms.learn(fields(body), read(body))
    assert forms.read(fields(body)) is not None
    assert forms.read(fields(body, "team-a")) is None
    for spec in ({"system": "other"}, {"system": "desk", "unknown": 1}, {"system": "desk", "max_turns": True}):
        assert forms.read(fields(body_of(spec, {}, "one", {"topic": "x"}))) is None
    assert forms.read(fields(body_of({"system": "desk"}, {}, "one", {"topic": "x"}, kind="Agent"))) is None


def test_as_many_forms_are_kept_as_are_worth_it() -> None:
    forms = TaskForms()
    bodies = [body_of({"system": f"s{n}"}, {}, "one", {"topic": "x"}) for n in range(MOST_FORMS + 1)]
    for body in bodies:
        forms.learn(fields(body), read(body))
    assert forms.read(fields(bodies[0])) is None
    assert forms.read(fields(bodies[-1])) is not None


TASK: dict[str, Any] = {"metadata": {"name": "one"}, "spec": {"agent": "echo", "input": {"topic": "x"}}}
DECLARED = [
    {
        "kind": "ModelEndpoint",
        "metadata": {"name": "script"},
        "spec": {"provider": "scripted", "default_model": "m", "script": {"turns": [{"say": "ok"}], "loop": True}},
    },
    {"kind": "Agent", "metadata": {"name": "echo"}, "spec": {"model_ref": "script", "prompt": "You repeat."}},
]


def named(name: str, topic: str = "x") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"agent": "echo", "input": {"topic": topic}}}


async def test_tasks_of_a_known_form_are_accepted_known_again_and_refused_as_ever(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/apply", json={"kind": "List", "items": DECLARED})).status_code == 200
    first = await http.post("/v1/tasks", json=named("one"))
    second = await http.post("/v1/tasks", json=named("two", "y"))
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json()["spec"] == {**first.json()["spec"], "input": {"topic": "y"}}
    assert (await http.get("/v1/tasks/two")).json()["spec"] == second.json()["spec"]
    assert (await http.post("/v1/tasks", json=named("two", "y"))).status_code == 200
    assert (await http.post("/v1/tasks", json=named("two", "z"))).status_code == 409
    assert (await http.post("/v1/tasks", json=named("watch"))).status_code == 422
    dry = await http.post("/v1/tasks?dryRun=true", json=named("three"))
    assert dry.json()["metadata"]["name"] == "three"
    assert (await http.get("/v1/tasks/three")).status_code == 404


async def test_a_form_that_somebody_else_used_lets_nobody_in(runtime: Runtime, settings: Settings) -> None:
    tokens = SqlTokens(runtime.inside.tasking.database)
    app = create_app(runtime, settings=settings, auth=TokenAuth(runtime.inside.tasking.database, local=False))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:

        async def post(role: str, namespaces: list[str], name: str) -> int:
            _, token = await tokens.create(f"{role}-{name}", roles=[role], namespaces=namespaces, now=time.time())
            headers = {"Authorization": f"Bearer {token}"}
            answer = await http.post("/v1/tasks", json=named(name), headers=headers)
            return answer.status_code

        assert await post("operator", ["default"], "one") == 201
        assert await post("operator", ["default"], "two") == 201
        assert await post("reader", ["default"], "three") == 403
        assert await post("operator", ["team-a"], "four") == 404
