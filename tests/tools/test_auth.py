"""Auth profiles: which header each of them becomes, and what cannot become one."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from foliot.tools.base import AuthSpec, ToolPolicyInvalid, ToolSecretMissing
from foliot.tools.secrets.auth import CallAuth, Credentials
from foliot.tools.secrets.masking import MASK, Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, Secrets


def auth(**values: str) -> CallAuth:
    environ = {f"FOLIOT_SECRET_{name}": value for name, value in values.items()}
    return CallAuth(Secrets(EnvironmentSecrets(environ), Masker()))


async def credentials(made: CallAuth, *given: Any, **more: Any) -> Credentials:
    return await made.credentials(AuthSpec(*given, **more), namespace="default", tool="t")


async def test_a_bearer_token() -> None:
    made = await credentials(auth(K1="sesame"), "bearer", "k1")
    assert made.headers == {"Authorization": "Bearer sesame"}
    assert made.environment == {"TOOL_AUTH_BEARER": "sesame"}
    assert not made.renewable


async def test_a_secret_alone_is_a_bearer_token() -> None:
    assert (await credentials(auth(K1="sesame"), "", "k1")).profile == "bearer"


async def test_a_key_in_a_header_of_its_own() -> None:
    made = await credentials(auth(K1="sesame"), "api_key_header", "k1", "X-Key")
    assert made.headers == {"X-Key": "sesame"}
    assert made.environment == {"TOOL_AUTH_HEADER_NAME": "X-Key", "TOOL_AUTH_HEADER_VALUE": "sesame"}


async def test_user_and_password_and_both_are_hidden() -> None:
    made = auth(K1="me:open sesame:1")
    found = await credentials(made, "basic", "k1")
    encoded = base64.b64encode(b"me:open sesame:1").decode()
    assert found.headers == {"Authorization": f"Basic {encoded}"}
    assert found.environment == {"TOOL_AUTH_BASIC": encoded}
    assert made.masker.mask(f"{encoded} and open sesame:1") == f"{MASK} and {MASK}"


@pytest.mark.parametrize("spec", [None, AuthSpec("", "")])  # type: ignore[arg-type]
async def test_nothing_declared_sends_nothing(spec: AuthSpec | None) -> None:
    assert await auth().credentials(spec, namespace="default", tool="t") == Credentials()


@pytest.mark.parametrize(
    "given",
    [
        ("kerberos", "k1"),
        ("bearer", ""),
        ("api_key_header", "k1"),
        ("api_key_header", "k1", "X Key"),
        ("api_key_header", "k1", "Host"),
        ("basic", "k1"),
        ("oauth2_client_credentials", "k1"),
        ("oauth2_client_credentials", "k1", "", "https://login.example/token"),
        ("oauth2_client_credentials", "k1:client_id", "", "https://login.example/token"),
    ],
)
async def test_a_declaration_that_cannot_be_carried_out(given: tuple[str, ...]) -> None:
    with pytest.raises(ToolPolicyInvalid) as caught:
        await credentials(auth(K1="sesame"), *given)
    assert "sesame" not in caught.value.message


@pytest.mark.parametrize("value", ["two\nlines", "a\r\nX-Admin: yes", "nul\0"])
async def test_a_secret_cannot_smuggle_a_header(value: str) -> None:
    with pytest.raises(ToolSecretMissing) as caught:
        await credentials(auth(K1=value), "bearer", "k1")
    assert value not in caught.value.message


async def test_credentials_do_not_show_themselves() -> None:
    assert "sesame" not in repr(await credentials(auth(K1="sesame"), "bearer", "k1"))
