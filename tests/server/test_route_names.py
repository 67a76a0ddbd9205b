"""The routes have public names, and the page of the HTTP API lists each of them once, with its role."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from foliot.runtime.groups.sessions import SessionGroup
from foliot.runtime.groups.work import RunGroup, TaskGroup
from foliot.server.route_table import ROUTES

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| `([A-Z]+) (/[^`]*)` \| ([a-z-]+) \|", PAGE, re.MULTILINE)


def test_no_route_is_for_one_client_alone() -> None:
    assert [path for _, path in ROUTES if path.startswith("/v1/work/")] == []


def test_the_page_of_the_http_api_lists_every_route_and_no_other() -> None:
    routes = [
        (method, path.replace(":path", ""), "-" if row.rule.where == "public" else row.rule.role)
        for (method, path), row in ROUTES.items()
    ]
    assert sorted(LISTED) == sorted(routes)


# A verb that reads has the word of what it returns; these are asked for by other means, or made of other requests.
ELSEWHERE = {
    "start",
    "prompt",
    "object",
    "get",
    "find",
    "list",
    "wait",
    "watch",
    "follow",
    "changed",
    "events",
    "result",
}
ELSEWHERE |= {"content", "files", "tree"}  # the first is asked for by a digest, the others are made of it
ELSEWHERE |= {"create", "chat"}  # sessions are created below their own path; a chat is what is said, and a stream
LISTS = {"interrupted": "/v1/interrupted-runs", "unknown": "/v1/unknown-calls"}
LISTS |= {verb: f"/v1/sessions/{verb}" for verb in ("resolve", "rotate", "invalidate")}
LISTS |= {"active": "/v1/active-session", "search": "/v1/session-search"}
LISTS |= {"fork_point": "/v1/runs/{run_id}/fork"}  # the place that a POST there branches off at
LISTS |= {"select_branch": "/v1/sessions/{session_id}/select-branch"}


@pytest.mark.parametrize(
    ("group", "path"),
    [
        (RunGroup, "/v1/runs/{run_id}/"),
        (TaskGroup, "/v1/tasks/{name}/"),
        (SessionGroup, "/v1/sessions/{session_id}/"),
    ],
)
def test_a_verb_of_python_is_the_word_of_its_path(group: type, path: str) -> None:
    paths = {path for _, path in ROUTES}
    for verb in (name for name in vars(group) if not name.startswith("_")):
        expected = LISTS.get(verb, path.replace("{name}/", "") + verb if verb == "submit" else path + verb)
        assert verb in ELSEWHERE or expected in paths, f"{group.__name__}.{verb}"


@pytest.mark.parametrize(
    ("path", "older"),
    [("/v1/tasks/{name}/retry", "/v1/tasks/{name}/requeue"), ("/v1/runs/{run_id}/say", "/v1/runs/{run_id}/input")],
)
def test_the_path_of_older_clients_is_the_same_route_under_another_name(path: str, older: str) -> None:
    now, then = ROUTES["POST", path], ROUTES["POST", older]
    assert (now.rule, now.key) == (then.rule, then.key)
    assert replace(then.described(), id=now.described().id, deprecated=False) == now.described()
    assert then.described().deprecated
