"""The gateway for Anthropic's Messages API."""

from __future__ import annotations

from foliot.models.config import GatewayConfig
from foliot.models.gateways.http import COMMON_OPTIONS, HttpGateway
from foliot.models.wire.anthropic import AnthropicWire, MessagesOptions

DEFAULT_URL = "https://api.anthropic.com/v1"
DEFAULT_VERSION = "2023-06-01"


class AnthropicGateway(HttpGateway):
    """POST {base}/messages with `x-api-key` and `anthropic-version`.

    Options: `anthropic_version`, `max_tokens`, `cache` (5m, 1h, off), `thinking` (auto, adaptive, budget, off),
    `structured_output` (auto, native, tool), `sampling` (auto, on, off: is a temperature sent), `auth` (key, bearer:
    for an address that wants a token). Beta headers go into the config's headers. Raises `InvalidInput` for an option
    that cannot be used.
    """

    OPTIONS = (
        frozenset({"anthropic_version", "max_tokens", "cache", "thinking", "structured_output", "sampling", "auth"})
        | COMMON_OPTIONS
    )
    FAMILY = "anthropic"

    def __init__(self, config: GatewayConfig) -> None:
        auth = {"anthropic-version": config.text("anthropic_version", DEFAULT_VERSION)}
        bearer = config.choice("auth", ("key", "bearer"), "key") == "bearer"
        if config.api_key and bearer:
            auth["Authorization"] = f"Bearer {config.api_key}"
        elif config.api_key:
            auth["x-api-key"] = config.api_key
        wire = AnthropicWire(MessagesOptions.from_config(config), config.profiles(self.FAMILY))
        super().__init__(config, wire, base_url=config.base_url or DEFAULT_URL, auth=auth)
