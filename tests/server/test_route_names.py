"""The routes have public names, and the page of the HTTP API lists each of them once, with its role."""

from __future__ import annotations

import re
from pathlib import Path

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
