"""Gateways for chat completions: OpenAI, everything compatible with it, and Azure OpenAI."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from foliot.errors import InvalidInput
from foliot.models.config import GatewayConfig
from foliot.models.http_gateway import COMMON_OPTIONS, HttpGateway
from foliot.models.wire.openai_chat import ChatOptions, OpenAIChatWire

DEFAULT_URL = "https://api.openai.com/v1"
AZURE_VERSION = "2024-10-21"
_ACCENTS = COMMON_OPTIONS | frozenset(
    {"max_tokens_field", "include_usage", "tool_choice", "system_role", "reasoning_replay", "tool_parts", "tool_calls"}
)


class OpenAIChatGateway(HttpGateway):
    """POST {base}/chat/completions with a bearer key (none for a local server that wants none).

    Options: `max_tokens_field`, `include_usage`, `tool_choice` (false: not sent), `system_role`, `reasoning_replay`,
    `tool_parts` (several texts of one tool result are sent as several), `tool_calls`, `organization`, `project`. Raises
    `InvalidInput` for an option that cannot be used.
    """

    OPTIONS = _ACCENTS | {"organization", "project"}

    def __init__(self, config: GatewayConfig) -> None:
        base_url = config.base_url or DEFAULT_URL
        auth = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        for option, header in (("organization", "OpenAI-Organization"), ("project", "OpenAI-Project")):
            if value := config.text(option):
                auth[header] = value
        wire = OpenAIChatWire(ChatOptions.from_config(config, base_url))
        super().__init__(config, wire, base_url=base_url, auth=auth)


class _AzureWire(OpenAIChatWire):
    """The same format; the deployment stands in the address instead of only in the body."""

    def __init__(self, options: ChatOptions, deployment: str, version: str) -> None:
        super().__init__(options)
        self._deployment = deployment
        self._version = version

    def path(self, model: str, *, stream: bool) -> str:
        deployment = quote(self._deployment or model, safe="")
        return f"/openai/deployments/{deployment}/chat/completions?api-version={quote(self._version, safe='')}"


class AzureOpenAIGateway(HttpGateway):
    """POST {base}/openai/deployments/{deployment}/chat/completions?api-version=… with an `api-key` header.

    Options: `deployment` (else the request's model), `api_version`, and the first five of `OpenAIChatGateway`.
    Raises `InvalidInput` without a base URL, which is the resource's own.
    """

    OPTIONS = _ACCENTS | {"deployment", "api_version"}
    FAMILY = "azure-openai"

    def __init__(self, config: GatewayConfig) -> None:
        if not config.base_url:
            raise InvalidInput(
                "an Azure OpenAI endpoint needs the base URL of its resource",
                hint="for example https://my-resource.openai.azure.com",
            )
        # The deployment is the model here: an endpoint that names one needs no default model besides.
        deployment = config.text("deployment")
        if deployment and not config.model:
            config = replace(config, model=deployment)
        options = ChatOptions.from_config(config, "https://openai.azure.com")
        wire = _AzureWire(options, deployment, config.text("api_version", AZURE_VERSION))
        super().__init__(config, wire, base_url=config.base_url, auth={"api-key": config.api_key})
