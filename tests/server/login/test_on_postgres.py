"""The same on PostgreSQL, where a server cannot tell for nothing whether something was taken back."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest

from foliot.settings.settings import Settings, load_settings
from tests.server.login.conftest import PASSWORD, LogIn, Site

NEW = "entirely different words"


@pytest.fixture
def settings(tmp_path: Path, postgres_url: str) -> Settings:
    return load_settings({"home": str(tmp_path), "store": postgres_url}, {})


async def test_accounts_sessions_and_tokens_from_the_first_to_the_last(
    site: Site, http: httpx.AsyncClient, log_in: LogIn
) -> None:
    token = await site.users.new_setup_token(now=site.clock.now, seconds=60.0)
    setup = {"username": "root", "password": PASSWORD, "setup_token": token}
    assert [(await http.post("/v1/auth/setup", json=setup)).status_code for _ in range(2)] == [201, 409]

    csrf = await log_in(http, "root")
    made = await http.post("/v1/tokens", json={"name": "ci", "namespaces": ["team-a"]}, headers=csrf)
    bearer = {"Authorization": f"Bearer {made.json()['token']}"}
    async with site.browser() as program:
        assert (await program.get("/v1/auth/me", headers=bearer)).json()["username"] == "ci"
        assert (await http.delete(f"/v1/tokens/{made.json()['id']}", headers=csrf)).status_code == 200
        assert (await program.get("/v1/auth/me", headers=bearer)).status_code == 401, "at once, where it was revoked"

    cookie = {"Cookie": f"foliot_session={http.cookies['foliot_session']}"}
    assert (await http.post("/v1/auth/logout", headers=csrf)).status_code == 200
    assert (await http.get("/v1/auth/me", headers=cookie)).status_code == 401, "at once, where it ended"

    csrf = await log_in(http, "root")
    order = {"current_password": PASSWORD, "new_password": NEW}
    assert (await http.post("/v1/auth/change-password", json=order, headers=csrf)).json()["sessions_ended"] == 1
    wrong = [
        (await http.post("/v1/auth/login", json={"username": "root", "password": PASSWORD})).status_code
        for _ in range(11)
    ]
    assert wrong == [401] * 10 + [429]
    site.clock.now += 60
    await log_in(http, "root", NEW)
