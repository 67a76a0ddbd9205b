"""Times by which lists are filtered, as people and programs write them."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.work.tasks.base import Command

WRONG = ("yesterday", "2026-13-01", "nan", "inf", "2x", "1" * 80)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/tasks", "createdAfter"),
        ("/v1/tasks", "createdBefore"),
        ("/v1/audit", "since"),
        ("/v1/audit/totals", "until"),
    ],
)
async def test_a_time_is_written_in_several_ways_and_a_wrong_one_is_told_how(
    path: str, name: str, http: httpx.AsyncClient
) -> None:
    for right in ("0", "1700000000.5", "2026-11-16", "2026-11-16T09:30:00Z", "2026-11-16T09:30:00+02:00", "2h", "7d"):
        answer = await http.get(path, params={name: right})
        assert answer.status_code == 200, (right, answer.text)
    for wrong in WRONG:
        answer = await http.get(path, params={name: wrong})
        assert answer.status_code == 400, wrong
        assert answer.json()["detail"].startswith(f"query.{name}: must be a time: 2026-11-16,")


async def test_tasks_are_those_from_and_until_a_time(runtime: Runtime, http: httpx.AsyncClient) -> None:
    await runtime.tasks.submit(Command(target_kind="agent", target="none", message="hello", name="now"))

    async def names(**query: str) -> list[str]:
        return [each["metadata"]["name"] for each in (await http.get("/v1/tasks", params=query)).json()["items"]]

    shown = (await http.get("/v1/tasks/now")).json()["metadata"]["createdAt"]
    assert await names(createdAfter=shown, createdBefore=shown) == ["now"], "as exactly as it is shown"
    today = datetime.now(UTC).date().isoformat()
    assert await names(createdAfter="1h") == ["now"]
    assert await names(createdAfter=today, createdBefore="2100-01-01") == ["now"]
    assert await names(createdBefore="1h") == []
    assert await names(createdAfter="2100-01-01T00:00:00Z") == []


async def test_a_page_that_is_the_last_one_says_so(runtime: Runtime, http: httpx.AsyncClient) -> None:
    for number in range(4):
        await runtime.tasks.submit(Command(target_kind="agent", target="none", message="hello", name=f"t{number}"))
    pages: list[list[str]] = []
    cursor = None
    while True:
        answer = (await http.get("/v1/tasks", params={"limit": 2, **({"continue": cursor} if cursor else {})})).json()
        pages.append([each["metadata"]["name"] for each in answer["items"]])
        if (cursor := answer.get("continue")) is None:
            break
    assert pages == [["t3", "t2"], ["t1", "t0"]]
