"""Results that tools push to the server."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from foliot.settings import load_settings

ID = "run/call_1"
DONE = {"tool_contract_version": "v1", "request_id": ID, "status": "ok", "output": {"result": "42"}}


@pytest.fixture
def settings(tmp_path):
    return load_settings({"home": str(tmp_path)}, {"FOLIOT_PUBLIC_URL": "http://foliot.example/"})


def address(runtime) -> str:
    """Where the tool was told to push to, as the server sees it."""
    parts = urlsplit(runtime.callbacks.url(ID))
    assert parts.netloc == "foliot.example"
    return f"{parts.path}?{parts.query}"


async def test_a_pushed_result_reaches_the_call_that_waits_and_only_once(runtime, http):
    with runtime.callbacks.expect(ID) as pushed:
        first = await http.post(address(runtime), json=DONE)
        again = await http.post(address(runtime), json=DONE)
        assert (await pushed).output == {"result": "42"}
    assert (first.status_code, first.json()) == (202, {"accepted": True})
    assert again.status_code == 410
    assert again.json()["code"] == "gone"


async def test_a_forged_or_changed_address_is_refused(runtime, http):
    with runtime.callbacks.expect(ID) as pushed:
        good = address(runtime)
        for wrong in (good[:-1] + ("0" if good[-1] != "0" else "1"), good.replace("call_1", "call_2"), good + "x"):
            assert (await http.post(wrong, json=DONE)).status_code == 403
        assert (await http.post(good.split("?")[0], json=DONE)).status_code == 422
        assert not pushed.done()


async def test_a_body_that_is_no_response_is_told_so_and_the_call_waits_on(runtime, http):
    with runtime.callbacks.expect(ID) as pushed:
        answer = await http.post(address(runtime), content=b"\xff{")
        assert answer.status_code == 422
        assert "not a tool's response" in answer.json()["detail"]
        assert not pushed.done()
