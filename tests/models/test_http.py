from __future__ import annotations

import subprocess
import sys

import pytest

from foliot.errors import InvalidInput
from foliot.models.config import GatewayConfig
from foliot.models.gateways.connection import HttpEndpoint, _proxy_for  # pyright: ignore[reportPrivateUsage]  # read in the constructor


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://api.example.com/v1", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://api.example.com/v1", None),
        ({"ALL_PROXY": "http://p:2"}, "http://api.example.com/v1", "http://p:2"),
        ({"HTTPS_PROXY": "socks5://p:1"}, "https://api.example.com/v1", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:11434", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".example.com"}, "https://api.example.com/v1", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "ample.com"}, "https://api.example.com/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, "https://api.example.com/v1", None),
    ],
)
def test_the_environment_names_the_proxy(
    environment: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _proxy_for(url) == proxy


def test_a_gateway_that_asks_nothing_does_not_load_the_http_client() -> None:
    program = (
        "import sys\n"
        "from foliot.models.config import GatewayConfig\n"
        "from foliot.models.gateways.anthropic import AnthropicGateway\n"
        "AnthropicGateway(GatewayConfig('anthropic', api_key='k'))\n"
        "sys.exit('aiohttp' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_proxy_of_the_environment_that_cannot_be_used_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://[me:hidden-word@")
    with pytest.raises(InvalidInput, match="proxy") as caught:
        HttpEndpoint(GatewayConfig("p"), "https://model.example/v1", {})
    assert "hidden-word" not in str(caught.value)
