"""How Foliot's words are spelt in OpenTelemetry: the one file that knows the GenAI conventions.

    run          span `invoke_agent <agent>`
    step         span `chat <model>`, below the run
    tool call    span `execute_tool <tool>`, below the run; runs that it delegates to stand below it
    approval     span `foliot.approval <tool>`, below the run: how long people took
    task         span `invoke_workflow <target>`
    message      span `foliot.message <sender> -> <agent>`, below the task; its run stands below it

What the conventions have no word for begins with `foliot.`. What people and models say is never in a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foliot.kernel.messages import ModelResponse, Usage

OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_ID: Final = "gen_ai.agent.id"
WORKFLOW: Final = "gen_ai.workflow.name"
PROVIDER: Final = "gen_ai.provider.name"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE: Final = "error.type"

INVOKE_AGENT: Final = "invoke_agent"
INVOKE_WORKFLOW: Final = "invoke_workflow"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

NAMESPACE: Final = "foliot.namespace"
RUN: Final = "foliot.run.id"
TASK: Final = "foliot.task"
STEP: Final = "foliot.step"
OUTCOME: Final = "foliot.outcome"
COST: Final = "foliot.cost_usd"
STEPS: Final = "foliot.steps"
TOOL_CALLS: Final = "foliot.tool_calls"
ATTEMPT: Final = "foliot.attempt"
WORKER: Final = "foliot.worker"
ENDPOINT: Final = "foliot.model.endpoint"
DECISION: Final = "foliot.approval.decision"
MESSAGE: Final = "foliot.message.id"
REASON: Final = "foliot.reason"

# Providers by the names that the conventions give them; others keep their own.
_PROVIDERS: Final[Mapping[str, str]] = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "openai-compatible": "openai",
    "azure-openai": "azure.ai.openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "bedrock": "aws.bedrock",
    "bedrock-anthropic": "aws.bedrock",
    "mistral": "mistral_ai",
    "x-ai": "x_ai",
}
_FINISHED: Final[Mapping[str, str]] = {
    "end": "stop",
    "tool_calls": "tool_call",
    "length": "length",
    "refusal": "content_filter",
}


def usage_attributes(usage: Usage) -> dict[str, Any]:
    """Tokens and money; what nobody counted is left out."""
    counted = {
        INPUT_TOKENS: usage.input_tokens,
        OUTPUT_TOKENS: usage.output_tokens,
        CACHE_READ: usage.cache_read_tokens,
        CACHE_WRITE: usage.cache_write_tokens,
        REASONING: usage.reasoning_tokens,
    }
    found: dict[str, Any] = {name: number for name, number in counted.items() if number}
    if usage.cost_usd is not None:
        found[COST] = float(usage.cost_usd)
    return found


def answer_attributes(response: ModelResponse) -> dict[str, Any]:
    """Returns the span attributes of an answer: its model, its finish reason, and its usage."""
    found: dict[str, Any] = {
        RESPONSE_MODEL: response.model,
        RESPONSE_ID: response.id,
        PROVIDER: _PROVIDERS.get(response.provider, response.provider),
        ENDPOINT: response.endpoint,
    }
    return {
        **{name: value for name, value in found.items() if value},
        FINISH_REASONS: (_FINISHED.get(response.stop, response.stop),),
        **usage_attributes(response.usage),
    }
