"""The gateway for Ollama's own API. Its OpenAI-compatible one is served by openai_chat.py."""

from __future__ import annotations

from foliot.models.config import GatewayConfig
from foliot.models.gateways.http import COMMON_OPTIONS, HttpGateway
from foliot.models.wire import embeddings
from foliot.models.wire.lines import JsonLines
from foliot.models.wire.ollama import OllamaOptions, OllamaWire

DEFAULT_URL = "http://127.0.0.1:11434"


class OllamaGateway(HttpGateway):
    """POST {base}/api/chat. A key is optional and sent as a bearer token, for servers behind a proxy.

    Options: `keep_alive`, `think` (auto, on, off), `num_ctx`. Raises `InvalidInput` for an option that cannot be used.
    """

    OPTIONS = frozenset({"keep_alive", "think", "num_ctx", "tool_calls"}) | COMMON_OPTIONS
    FAMILY = "ollama"
    EMBEDDINGS = embeddings.OLLAMA
    lines = JsonLines

    def __init__(self, config: GatewayConfig) -> None:
        auth = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        wire = OllamaWire(OllamaOptions.from_config(config), config.profiles(self.FAMILY))
        super().__init__(config, wire, base_url=config.base_url or DEFAULT_URL, auth=auth)
