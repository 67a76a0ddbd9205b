"""The gateway for OpenAI's Responses API."""

from __future__ import annotations

from foliot.models.config import GatewayConfig
from foliot.models.http_gateway import COMMON_OPTIONS, HttpGateway
from foliot.models.openai_chat import DEFAULT_URL
from foliot.models.wire import embeddings
from foliot.models.wire.openai_responses import OpenAIResponsesWire, ResponsesOptions


class OpenAIResponsesGateway(HttpGateway):
    """POST {base}/responses with a bearer key; nothing is stored at the provider.

    Options: `encrypted_reasoning` (auto, on, off), `reasoning_summary` (auto, concise, detailed, off),
    `cache` (key, off), `organization`, `project`. Raises `InvalidInput` for an option that cannot be used.
    """

    OPTIONS = COMMON_OPTIONS | {"encrypted_reasoning", "reasoning_summary", "cache", "organization", "project"}
    FAMILY = "openai-responses"
    EMBEDDINGS = embeddings.OPENAI
    FORMS = True

    def __init__(self, config: GatewayConfig) -> None:
        auth = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        for option, header in (("organization", "OpenAI-Organization"), ("project", "OpenAI-Project")):
            if value := config.text(option):
                auth[header] = value
        base_url = config.base_url or DEFAULT_URL
        wire = OpenAIResponsesWire(ResponsesOptions.from_config(config, base_url), config.profiles(self.FAMILY))
        super().__init__(config, wire, base_url=base_url, auth=auth)
