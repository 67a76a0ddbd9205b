"""Logging in with an identity provider that others wrote, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.auth.passwords import Passwords
from foliot.settings.settings import Settings, load_settings
from tests.server.login.conftest import CHEAP, Clock, Site

PROGRAM = """
import sys
from oidc_provider_mock import run_server_in_thread
with run_server_in_thread(require_nonce=True) as server:
    print(server.server_port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(110, process.kill)
    timer.start()
    with process.stdin, process.stdout:
        port = process.stdout.readline().strip()
        timer.cancel()
        assert port, "the provider did not start"
        yield f"http://localhost:{port}"
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.fixture
def settings(tmp_path: Path, issuer: str) -> Settings:
    return load_settings(
        {"home": str(tmp_path)},
        {
            "FOLIOT_OIDC_ISSUER": issuer,
            "FOLIOT_OIDC_CLIENT_ID": "foliot",
            "FOLIOT_OIDC_CLIENT_SECRET": "sesame",
            "FOLIOT_OIDC_ROLES": "devs=author@team-a, devs=operator@team-a, ops=admin@*",
        },
    )


@pytest.fixture
async def site(runtime: Runtime, settings: Settings, clock: Clock) -> AsyncIterator[Site]:
    auth = TokenAuth(
        runtime.inside.tasking.database, local=True, settings=settings, passwords=Passwords(**CHEAP), clock=clock
    )
    yield Site(runtime, auth, create_app(runtime, settings=settings, auth=auth), clock)
    await auth.close()


async def test_somebody_logs_in_with_the_roles_of_their_groups(
    site: Site, http: httpx.AsyncClient, issuer: str
) -> None:
    config = (await http.get("/v1/auth/config")).json()
    assert config == {"mode": "native", "setup_required": False, "login_methods": ["password", "oidc"]}
    assert (await http.get("/v1/auth/me")).status_code == 401, "a provider shuts the door for strangers"

    sent = await http.get("/v1/auth/oidc/login", params={"return_to": "/runs?open=1"})
    assert sent.status_code == 303
    async with httpx.AsyncClient(trust_env=False) as outside:
        claims = {"preferred_username": "ada", "groups": ["devs", "others"]}
        await outside.put(f"{issuer}/users/sub-1", json=claims)
        agreed = await outside.post(sent.headers["location"], data={"sub": "sub-1"})
    back = urlsplit(agreed.headers["location"])
    assert (back.netloc, back.path) == ("localhost", "/v1/auth/oidc/callback")
    answer = await http.get(f"{back.path}?{back.query}")

    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?open=1")
    me = (await http.get("/v1/auth/me")).json()
    assert (me["username"], me["method"], me["roles"]) == ("oidc:ada", "session", {"team-a": ["author", "operator"]})
    written = await http.post(
        "/v1/model-endpoints?namespace=team-a",
        json={"kind": "ModelEndpoint", "metadata": {"name": "x"}, "spec": {"provider": "mock"}},
        headers={"X-CSRF-Token": me["csrf_token"]},
    )
    assert written.status_code == 201
    changed = await http.post(
        "/v1/auth/change-password",
        json={"current_password": "a", "new_password": "b"},
        headers={"X-CSRF-Token": me["csrf_token"]},
    )
    assert "identity provider" in changed.json()["detail"]
    assert [act["outcome"] for act in await site.acts()][:1] == ["logged_in"]


async def test_whoever_says_no_at_the_provider_is_told_so(site: Site, http: httpx.AsyncClient) -> None:
    sent = await http.get("/v1/auth/oidc/login")
    async with httpx.AsyncClient(trust_env=False) as outside:
        denied = await outside.post(sent.headers["location"], data={"action": "deny"})
    back = urlsplit(denied.headers["location"])
    state = dict(pair.split("=") for pair in urlsplit(sent.headers["location"]).query.split("&"))["state"]

    # This provider leaves out the state here, which others must not.
    answer = await http.get(f"{back.path}?{back.query}&state={state}")

    assert answer.status_code == 401
    assert "access_denied" in answer.json()["detail"]
