"""Gateways for chat completions: OpenAI, everything compatible with it, and Azure OpenAI."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from foliot.errors import InvalidInput
from foliot.kernel.messages import ModelRequest
from foliot.models.config import GatewayConfig
from foliot.models.gateways.http import COMMON_OPTIONS, HttpGateway
from foliot.models.wire import embeddings
from foliot.models.wire.openai_chat import ChatOptions, OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire, ResponsesOptions
from foliot.models.wire.requests import Notes, Profiles
from foliot.models.wire.tool_names import ToolNames

DEFAULT_URL = "https://api.openai.com/v1"
AZURE_VERSION = "2024-10-21"
_ACCENTS = COMMON_OPTIONS | {
    "max_tokens_field", "include_usage", "tool_choice", "system_role", "reasoning_replay", "tool_parts", "tool_calls",
    "cache", "call_ids",
}  # fmt: skip


class OpenAIChatGateway(HttpGateway):
    """POST {base}/chat/completions with a bearer key (none for a local server that wants none).

    Options: `max_tokens_field`, `include_usage`, `tool_choice` (false: not sent), `system_role`, `reasoning_replay`,
    `tool_parts` (several texts of one tool result are sent as several), `tool_calls`, `cache` (key, marks, off),
    `call_ids` (any, or nine letters and digits, as Mistral wants them), `organization`, `project`. Raises
    `InvalidInput` for an option that cannot be used.
    """

    OPTIONS = _ACCENTS | {"organization", "project"}
    EMBEDDINGS = embeddings.OPENAI
    FORMS = True

    def __init__(self, config: GatewayConfig) -> None:
        base_url = config.base_url or DEFAULT_URL
        auth = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
        for option, header in (("organization", "OpenAI-Organization"), ("project", "OpenAI-Project")):
            if value := config.text(option):
                auth[header] = value
        wire = OpenAIChatWire(ChatOptions.from_config(config, base_url), config.profiles(self.FAMILY))
        super().__init__(config, wire, base_url=base_url, auth=auth)


class _AzureWire(OpenAIChatWire):
    """The same format; the deployment stands in the address, or as the model in the body of the API called v1."""

    def __init__(self, options: ChatOptions, profiles: Profiles, deployment: str, version: str, *, v1: bool) -> None:
        super().__init__(options, profiles)
        self._deployment = deployment
        self._version = version
        self._v1 = v1

    def of(self, deployment: str) -> _AzureWire:
        return _AzureWire(self.options, self._profile, deployment, self._version, v1=self._v1)

    def path(self, model: str, *, stream: bool) -> str:
        if self._v1:
            return f"/openai/v1/chat/completions{'?api-version=preview' if self._version == 'preview' else ''}"
        deployment = quote(self._deployment or model, safe="")
        return f"/openai/deployments/{deployment}/chat/completions?api-version={quote(self._version, safe='')}"

    def build_body(
        self, request: ModelRequest, names: ToolNames, *, stream: bool, notes: Notes | None = None
    ) -> dict[str, Any]:
        body = super().build_body(request, names, stream=stream, notes=notes)
        return {**body, "model": self._deployment} if self._v1 and self._deployment else body


_AZURE_PATH = re.compile(r"/openai(?P<v1>/v1)?(/deployments/(?P<deployment>[^/]+))?(/chat/completions)?/?$")


class AzureOpenAIGateway(HttpGateway):
    """POST {base}/openai/deployments/{deployment}/chat/completions?api-version=… with an `api-key` header.

    With a base URL that ends in `/openai/v1`, or the `api_version` v1 or preview: {base}/openai/v1/chat/completions, as
    Azure has it since August 2025. Options: `deployment` (else the request's model), `api_version`, and the accents
    of `OpenAIChatGateway`. Raises `InvalidInput` without a base URL: the resource's own, or what an SDK makes of it.
    """

    OPTIONS = _ACCENTS | {"deployment", "api_version"}
    EMBEDDINGS = embeddings.OPENAI
    FORMS = True
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
        # As people copy it: the resource, the SDK's base URL, or one deployment's.
        given = _AZURE_PATH.search(config.base_url)
        if given is not None:
            deployment = deployment or unquote(given["deployment"] or "")
        version = config.text("api_version", AZURE_VERSION)
        v1 = version in ("v1", "preview", "latest") or (given is not None and given["v1"] is not None)
        if not v1:
            options = replace(options, cache="off")  # the dated versions refuse fields that are newer
        self._azure = wire = _AzureWire(options, config.profiles(self.FAMILY), deployment, version, v1=v1)
        resource = config.base_url if given is None else config.base_url[: given.start()]
        super().__init__(config, wire, base_url=resource, auth={"api-key": config.api_key})

    def _embedding_path(self, model: str) -> str:
        return self._beside_chat(model, "/embeddings")

    def _transcription_path(self, model: str) -> str:
        return self._beside_chat(model, "/audio/transcriptions")

    def _beside_chat(self, model: str, path: str) -> str:
        # The model of embeddings, or of transcripts, is a deployment of its own.
        return self._azure.of(model).path(model, stream=False).replace("/chat/completions", path)


# --- openai responses ------------------------------------------------------------------------------------------------

# The gateway for OpenAI's Responses API.


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
