"""A field that a form does not have is refused on every route that takes a form: nothing is left out in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import httpx2 as httpx
import pytest

from foliot.server import routes
from foliot.server.route_table import ROUTES

# Other people's protocols: their clients send fields that came later, and expect them to be left out.
LENIENT: Final = {"/v1/chat/completions", "/v1/responses"}

# Refused in the words of that protocol: 400, and not 422.
BAD_REQUEST: Final = {"/v1/responses/input_tokens"}

# They say first that this server has no accounts; that they read their bodies as all others do is checked below.
ACCOUNTS: Final = {"/v1/auth/login", "/v1/auth/setup", "/v1/auth/change-password"}


def forms() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for (method, path), row in ROUTES.items():
        operation = row.operation
        if operation is None or callable(operation) or operation.body is None or not operation.body.form:
            continue
        found.append((method, path))
    return found


async def a_run(http: httpx.AsyncClient) -> str:
    """The id of a run that there is: some routes look for it first."""
    script = {"provider": "scripted", "default_model": "m", "script": [{"say": "hi"}]}
    for kind, spec in (("ModelEndpoint", script), ("Agent", {"model_ref": "m"})):
        document = {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": {"name": "m"}, "spec": spec}
        assert (await http.post("/v1/apply", json=document)).is_success
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert (await http.post("/v1/chat/completions", json=chat)).is_success
    return (await http.get("/v1/runs")).json()["items"][0]["metadata"]["name"]


@pytest.mark.parametrize(("method", "path"), [each for each in forms() if each[1] not in LENIENT | ACCOUNTS])
async def test_a_field_that_is_not_in_the_form_is_refused(http: httpx.AsyncClient, method: str, path: str) -> None:
    name = await a_run(http) if "/runs/{" in path else "x"
    url = re.sub(r"\{[^}]*\}", name, path)
    answer = await http.request(method, url, json={"a_field_of_nobody": 1})
    assert answer.status_code == (400 if path in BAD_REQUEST else 422), answer.text
    assert "a_field_of_nobody" in answer.text


def test_the_routes_were_found() -> None:
    assert len(forms()) > 30
    assert {path for _, path in forms()} >= LENIENT


def test_no_handler_reads_a_form_by_itself() -> None:
    """Besides the two lenient ones, only receivers of webhooks and of results of tools do, which take any bytes.

    And the one that accepts tasks: it hands a body whose form it does not know to the reader of manifests.
    """
    found = {
        file.name
        for file in Path(routes.__file__ or "").parent.glob("*.py")
        if re.search(r"request\.(body|json|stream|form)\(", file.read_text())
    }
    assert found == {"openai.py", "tasks.py", "webhooks.py", "tool_callbacks.py"}


@pytest.mark.parametrize(
    ("body", "field", "meant"),
    [
        ({"tool": "refund", "seconds": 60, "max_uses": 1}, "max_uses", "scope.max_uses"),
        ({"tool": "refund", "seconds": 60, "scope": {"max_use": 1}}, "scope.max_use", "scope.max_uses"),
        ({"tool": "refund", "second": 60}, "second", "seconds"),
    ],
)
async def test_a_limit_in_the_wrong_place_is_not_left_out(
    http: httpx.AsyncClient, body: dict[str, object], field: str, meant: str
) -> None:
    answer = await http.post("/v1/tool-approvals/grants", json=body)
    assert answer.status_code == 422, answer.text
    assert f"no field '{field}'" in answer.text
    assert f"did you mean {meant}" in answer.text
