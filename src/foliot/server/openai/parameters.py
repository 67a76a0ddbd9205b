"""The treatment of each parameter of both APIs: one table, which the reader obeys and docs/openai.md shows.

A parameter that changes what is done is done or refused, never passed over in silence. What has no effect here is
named, with the reason. One that is in no table is refused: a mistyped name is not taken for a wish that was granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from foliot.server.openai.errors import BadRequest

Fate: TypeAlias = Literal["done", "kept", "no effect", "only", "refused"]


class Parameter(NamedTuple):
    """`note` is for people. Of a parameter that is `only` some values, those are `values`, beside null."""

    fate: Fate
    note: str
    values: tuple[Any, ...] = ()


_LABEL: Final = "a label of the run; never who acts"
_SERVICE: Final = "concerns OpenAI's own service; prompts are cached as the agent's endpoint says"
_SINGLE: Final[dict[str, Parameter]] = {
    "metadata": Parameter("kept", "labels of the run"),
    "model": Parameter("done", "an agent or a system"),
    "moderation": Parameter("refused", "policies are declared with the agent"),
    "parallel_tool_calls": Parameter("done", "for this run, as far as its provider can"),
    "prompt_cache_key": Parameter("no effect", _SERVICE),
    "prompt_cache_options": Parameter("no effect", _SERVICE),
    "prompt_cache_retention": Parameter("no effect", _SERVICE),
    "safety_identifier": Parameter("kept", _LABEL),
    "service_tier": Parameter("only", "the tier is the endpoint's", ("auto", "default")),
    "store": Parameter("no effect", "runs are stored, always; DELETE and `foliot purge` forget them"),
    "stream": Parameter("done", "the answer in pieces"),
    "temperature": Parameter("done", "for this run"),
    "tool_choice": Parameter("done", "of the client's tools; the agent's own are its own"),
    "tools": Parameter("done", "functions, which the client calls; other types are refused"),
    "top_p": Parameter("done", "for this run"),
    "user": Parameter("kept", _LABEL),
}
CHAT: Final[Mapping[str, Parameter]] = {
    **_SINGLE,
    "audio": Parameter("refused", "answers are text"),
    "frequency_penalty": Parameter("only", "not every model has it", (0,)),
    "function_call": Parameter("refused", "use tool_choice"),
    "functions": Parameter("refused", "use tools"),
    "logit_bias": Parameter("only", "not every model has it", ({},)),
    "logprobs": Parameter("only", "an agent's answer has no probabilities", (False,)),
    "max_completion_tokens": Parameter("done", "never more than the agent's own limit"),
    "max_tokens": Parameter("done", "the older name of max_completion_tokens"),
    "messages": Parameter("done", "the conversation"),
    "modalities": Parameter("only", "answers are text", (["text"], [])),
    "n": Parameter("only", "there is one answer to a request", (1,)),
    "prediction": Parameter("refused", "an agent writes in steps"),
    "presence_penalty": Parameter("only", "not every model has it", (0,)),
    "reasoning_effort": Parameter("done", "for this run"),
    "response_format": Parameter("done", "for agents without an output_schema of their own"),
    "seed": Parameter("done", "for this run"),
    "stop": Parameter("done", "for this run"),
    "stream_options": Parameter("done", "include_usage; include_obfuscation has no effect: nothing is padded"),
    "top_logprobs": Parameter("only", "an agent's answer has no probabilities", (0,)),
    "verbosity": Parameter("only", "say it in a system message", ("medium",)),
    "web_search_options": Parameter("refused", "an agent has its own tools"),
}
RESPONSES: Final[Mapping[str, Parameter]] = {
    **_SINGLE,
    "access_programs": Parameter("refused", "concerns OpenAI's own service"),
    "background": Parameter("done", "returns at once"),
    "context_management": Parameter("refused", "declared with the agent"),
    "conversation": Parameter("done", "the name of a session"),
    "image": Parameter("refused", "answers are text"),
    "include": Parameter("only", "nothing else can be added to an answer", ([], ["reasoning.encrypted_content"])),
    "input": Parameter("done", "what is said"),
    "instructions": Parameter("done", "behind the agent's own prompt"),
    "max_output_tokens": Parameter("done", "never more than the agent's own limit"),
    "max_tool_calls": Parameter("refused", "limits are declared with the agent"),
    "previous_response_id": Parameter("done", "the conversation goes on from there"),
    "prompt": Parameter("refused", "prompts are declared with the agent"),
    "reasoning": Parameter("done", "effort; summary has no effect, for what a model thinks is not sent; no others"),
    "stream_options": Parameter("no effect", "nothing is padded"),
    "text": Parameter("done", "format, for agents without an output_schema of their own; verbosity only medium"),
    "top_logprobs": Parameter("only", "an agent's answer has no probabilities", (0,)),
    "truncation": Parameter("only", "nothing is left out in silence", ("disabled",)),
}


def check_parameters(given: Mapping[str, Any], known: Mapping[str, Parameter]) -> None:
    """Raises `BadRequest` for one that is not known, or asks for what is not done. Null is as if it were not there."""
    for name, value in given.items():
        if value is None:
            continue
        parameter = known.get(name)
        if parameter is None:
            raise BadRequest(f"there is no parameter {name[:100]!r}", param=name[:100], code="unknown_parameter")
        if parameter.fate == "refused" and value:
            raise BadRequest(
                f"{name} cannot be used here", param=name, hint=parameter.note, code="unsupported_parameter"
            )
        if parameter.fate == "only" and not _is_one_of(value, parameter.values):
            allowed = " or ".join(_written(each) for each in parameter.values)
            text = f"{name} can only be {allowed}"
            raise BadRequest(text, param=name, hint=parameter.note, code="unsupported_value")


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether it is one of these; true is not 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def parameter_table(known: Mapping[str, Parameter]) -> str:
    """The table as Markdown, for docs/openai.md."""
    lines = ["| parameter | what happens | |", "|---|---|---|"]
    for name, (fate, note, values) in sorted(known.items()):
        said = f"only {' or '.join(f'`{_written(each)}`' for each in values)}" if fate == "only" else fate
        lines.append(f"| `{name}` | {said} | {note} |")
    return "\n".join(lines) + "\n"
