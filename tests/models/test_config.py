from __future__ import annotations

import pytest

from foliot.errors import InvalidInput
from foliot.models.config import GatewayConfig
from foliot.models.gateways.openai import AzureOpenAIGateway, OpenAIChatGateway


def test_a_key_never_shows() -> None:
    config = GatewayConfig("openai", api_key="sk-secret", headers={"X-Token": "also-secret"}, proxy="http://u:pw@proxy")
    shown = f"{config!r} {config} {OpenAIChatGateway(config)!r}"
    assert "secret" not in shown
    assert "pw" not in shown


@pytest.mark.parametrize("url", ["api.openai.com", "ftp://host", "http://", "file:///etc/passwd"])
def test_a_base_url_that_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="http"):
        GatewayConfig("openai", base_url=url)


@pytest.mark.parametrize("key", ["sk-a\nsk-b", "sk-\x00", "schlüssel"])
def test_a_key_that_cannot_stand_in_a_header_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        GatewayConfig("openai", api_key=key)
    assert key not in str(caught.value)


def test_options_are_found_whatever_their_case() -> None:
    config = GatewayConfig("x", options={" Max_Tokens ": "7", "CACHE": "off", "flag": "Yes"})
    assert config.integer("max_tokens", 1) == 7
    assert config.choice("cache", ("on", "off"), "on") == "off"
    assert config.flag("flag", False) is True
    assert config.flag("absent", True) is True


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("max_tokens", "many", lambda c: c.integer("max_tokens", 1)),
        ("include_usage", "perhaps", lambda c: c.flag("include_usage", True)),
        ("cache", "2h", lambda c: c.choice("cache", ("5m", "1h"), "5m")),
    ],
)
def test_an_option_that_cannot_be_used_is_named(name: str, value: str, read: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        read(GatewayConfig("x", options={name: value}))  # type: ignore[operator]


@pytest.mark.parametrize("value", ["0", "-5", "", None])
def test_a_number_that_is_not_positive_means_the_default(value: object) -> None:
    assert GatewayConfig("x", options={"max_tokens": value}).integer("max_tokens", 9) == 9


def test_azure_needs_the_address_of_its_resource() -> None:
    with pytest.raises(InvalidInput, match="base URL"):
        AzureOpenAIGateway(GatewayConfig("azure-openai", api_key="k"))


@pytest.mark.parametrize("proxy", ["me:hidden-word@proxy:1", "socks5://me:hidden-word@proxy", "http://me:hidden-word@"])
def test_a_proxy_that_cannot_be_used_is_refused_without_being_shown(proxy: str) -> None:
    with pytest.raises(InvalidInput, match="proxy") as caught:
        GatewayConfig("openai", proxy=proxy)
    assert "hidden-word" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("url", ["http://host:port", "http://[::1", "https://host:99999999", "http://ho\nst"])
def test_an_address_that_cannot_be_read_is_refused_like_any_other(url: str) -> None:
    with pytest.raises(InvalidInput, match="not an http or https address"):
        GatewayConfig("openai", base_url=url)


@pytest.mark.parametrize("url", ["https://r.openai.azure.com/openai?api-version=2024-10-21", "https://host/v1#x"])
def test_an_address_with_a_query_says_where_the_version_belongs(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        GatewayConfig("azure-openai", base_url=url)
    assert "api_version" in str(caught.value.hint)
