"""Records are looked for by words that there are: another one is refused, and not an empty list."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from foliot.engine.audit.words import MOMENTS, OUTCOMES
from foliot.errors import InvalidInput
from foliot.runtime.runtime import Runtime
from foliot.store.audit.log import AuditFilter


@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit/totals"])
async def test_a_word_that_no_record_has_is_refused_with_those_there_are(path: str, http: httpx.AsyncClient) -> None:
    for name, wrong, meant, words in (
        ("outcome", "faild", "failed", OUTCOMES),
        ("moment", "finised", "finished", MOMENTS),
    ):
        answer = await http.get(path, params={name: wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.text
        assert answer.json()["hint"] == f"did you mean {meant}?"
        for word in words:
            assert word in answer.json()["detail"]
            assert (await http.get(path, params={name: word})).status_code == 200
        assert (await http.get(path, params={name: ""})).status_code == 200


async def test_a_runtime_refuses_the_same_words(runtime: Runtime) -> None:
    for wanted in (AuditFilter(outcome="faild"), AuditFilter(moment="finised")):
        with pytest.raises(InvalidInput, match="is not one of"):
            await runtime.audit.list(wanted)
        with pytest.raises(InvalidInput, match="is not one of"):
            await runtime.audit.totals(wanted, by="tool")


async def test_what_is_done_over_http_is_recorded_with_a_word_that_can_be_looked_for(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/model-endpoints", json={"metadata": {"name": "m"}, "spec": {"provider": "mock"}})
    assert made.status_code == 201, made.text
    found = (await http.get("/v1/audit", params={"moment": "act", "outcome": "created"})).json()["records"]
    assert [each["body"]["resource"]["name"] for each in found] == ["m"]
