"""Refusals over HTTP name what is wrong, where, and what to do instead."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/tasks", {"kind": "Agent", "metadata": {"name": "a"}, "spec": {}}, 400, "POST it to /v1/agents"),
        ("POST", "/v1/tasks", {"kind": "Task", "metadata": {"name": "t"}, "spec": {}}, 422, "spec.agent"),
        ("GET", "/v1/runs/nope", None, 404, "there is no run 'nope'"),
        ("GET", "/v1/agents?namespace=Bad%20NS", None, 400, "namespace"),
        ("GET", "/v1/agents?labelSelectr=a", None, 400, "did you mean labelSelector?"),
        ("POST", "/v1/chat/completions", {"model": "a", "messages": "hi"}, 400, "messages: expected a list, got text"),
    ],
)
async def test_a_refusal_says_what_is_wrong(
    http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, status: int, says: str
) -> None:
    answer = await http.request(method, path, json=body)

    assert answer.status_code == status, answer.text
    assert says in answer.text
