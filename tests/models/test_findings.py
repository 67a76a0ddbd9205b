"""Nothing of an answer is dropped silently: sources are kept, blocks of a provider's tools go back, the rest is noted.

The types of the official SDKs say what there is; a type that stands in no table fails here.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from foliot import Agent, Runtime
from foliot.engine.explain.trace import trace_of
from foliot.kernel.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Source,
    Text,
    ToolCall,
)
from foliot.models.config import GatewayConfig
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.wire import anthropic as anthropic_answer
from foliot.models.wire import gemini as gemini_answer
from foliot.models.wire import openai_chat as openai_chat_answer
from foliot.models.wire import openai_responses as openai_responses_answer
from foliot.models.wire.anthropic import AnthropicWire
from foliot.models.wire.base import Wire
from foliot.models.wire.findings import ANNOTATIONS, CHUNKS, CITATIONS
from foliot.models.wire.gemini import GeminiWire
from foliot.models.wire.openai_chat import OpenAIChatWire
from foliot.models.wire.openai_responses import OpenAIResponsesWire
from foliot.models.wire.values import CallIds
from foliot.runtime.results import RunFailedError
from simulators.provider import Fault, Play, WireServer

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
genai = pytest.importorskip("google.genai.types")

USER = Message("user", (Text("hi"),))
ASK = ModelRequest("m", (USER,))
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def read(wire: Wire, body: Any, frames: list[Any] | None = None) -> ModelResponse:
    """The answer, of a body or of the events of a stream."""
    names, ids = wire.names(ASK), CallIds(ASK, lambda: b"seed")
    if frames is None:
        return wire.parse(json.dumps(body).encode(), names, ids)
    assembler = wire.assembler(names, ids)
    for frame in frames:
        assembler.feed(json.dumps(frame).encode())
    return assembler.finish()


def sent_again(wire: Wire, model: str, answer: ModelResponse) -> dict[str, Any]:
    request = ModelRequest(model, (USER, answer.message, USER))
    return json.loads(json.dumps(wire.build_body(request, wire.names(request), stream=False)))


# --- the tables ------------------------------------------------------------------------------------------------------


def members(kind: Any) -> Iterator[Any]:
    """The types of a union, however deep."""
    inner = typing.get_args(kind)
    if inner and typing.get_origin(kind) is not typing.Literal:
        for each in inner:
            yield from members(each)
    elif isinstance(kind, type):
        yield kind


def tags(union: Any) -> set[str]:
    """What discriminates a union: the words of the field `type` of each member."""
    found: set[str] = set()
    for each in members(union):
        fields = getattr(each, "model_fields", None)
        field = typing.get_type_hints(each).get("type") if fields is None else fields["type"].annotation
        while field is not None and typing.get_origin(field) is not typing.Literal:
            field = next(iter(typing.get_args(field)), None)
        found |= {str(word) for word in typing.get_args(field)}
    return found


# Items that ask the client to act, or answer such a one: none is asked for, and each leaves a note.
ASKED_OF_CLIENTS = {
    "function_call_output", "computer_call", "computer_call_output", "tool_search_call", "additional_tools",
    "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "mcp_approval_request", "mcp_approval_response", "custom_tool_call",
    "custom_tool_call_output",
}  # fmt: skip


def test_every_item_of_a_response_is_read_carried_or_noted() -> None:
    from openai.types.responses import response_input_item_param, response_output_item

    known = openai_responses_answer.READ | openai_responses_answer.CARRIED
    assert tags(response_output_item.ResponseOutputItem) == known | ASKED_OF_CLIENTS
    assert tags(response_input_item_param.ResponseInputItemParam) >= openai_responses_answer.CARRIED
    for kind in ASKED_OF_CLIENTS:
        answer = read(OpenAIResponsesWire(), {"status": "completed", "output": [{"type": kind, "id": "x"}]})
        assert answer.notes == (f"an item {kind} of the answer is not kept",)


def test_every_annotation_and_citation_is_read() -> None:
    from anthropic.types import text_citation
    from openai.types.chat import chat_completion_message
    from openai.types.responses import response_output_text

    assert tags(response_output_text.Annotation) | tags(chat_completion_message.Annotation) == ANNOTATIONS
    assert tags(text_citation.TextCitation) == CITATIONS
    assert {_camel(name) for name in genai.GroundingChunk.model_fields} == CHUNKS


def test_every_block_of_a_message_is_read_carried_or_noted() -> None:
    from anthropic.types import content_block, content_block_param
    from anthropic.types.beta import beta_content_block

    known = anthropic_answer.READ | anthropic_answer.CARRIED
    assert tags(content_block.ContentBlock) <= known
    assert tags(content_block_param.ContentBlockParam) >= tags(content_block.ContentBlock) & anthropic_answer.CARRIED
    assert tags(beta_content_block.BetaContentBlock) == known | {"mcp_tool_listing"}
    answer = read(AnthropicWire(), {"content": [{"type": "mcp_tool_listing"}], "stop_reason": "end_turn"})
    assert answer.notes == ("a block mcp_tool_listing of the answer is not kept",)


# Fields that say something of the part beside them.
OF_THE_PART = {"mediaResolution", "videoMetadata", "partMetadata"}


def test_every_part_of_a_candidate_is_read_carried_or_noted() -> None:
    fields = {_camel(name) for name in genai.Part.model_fields}
    carried, noted = gemini_answer.CARRIED.keys(), gemini_answer.NOTED.keys()
    assert fields == gemini_answer.READ | carried | noted | OF_THE_PART
    for kind in noted:
        body = {"candidates": [{"content": {"parts": [{kind: {"x": 1}}]}, "finishReason": "STOP"}]}
        assert read(GeminiWire(), body).notes == (f"a part {kind} of the answer is not kept",)


def test_every_field_of_a_chat_message_is_read() -> None:
    from openai.types.chat import ChatCompletionMessage
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

    assert set(ChatCompletionMessage.model_fields) == openai_chat_answer.MESSAGE_FIELDS
    assert set(ChoiceDelta.model_fields) <= openai_chat_answer.MESSAGE_FIELDS


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


# --- sources ---------------------------------------------------------------------------------------------------------

CHAT_NOTE = {"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 1, "end_index": 3}}


@WAYS
def test_annotations_of_chat_completions_are_sources(stream: bool) -> None:
    said = {"content": "hello", "annotations": [CHAT_NOTE, {"type": "new"}]}
    body = {"id": "1", "choices": [{"message": said, "finish_reason": "stop"}]}
    frames = [
        {"id": "1", "choices": [{"delta": {"content": "hello"}}]},
        {"id": "1", "choices": [{"delta": {"annotations": said["annotations"]}, "finish_reason": "stop"}]},
    ]
    answer = read(OpenAIChatWire(), body, frames if stream else None)
    assert answer.sources == (Source("u", "t", start=1, end=3),)
    assert answer.notes == ("an annotation new of the answer is not kept",)


def response_frames(body: dict[str, Any]) -> list[Any]:
    """As a proxy streams it that leaves the last event empty."""
    items = [
        {"type": "response.output_item.done", "output_index": number, "item": item}
        for number, item in enumerate(body["output"])
    ]
    return [*items, {"type": "response.completed", "response": {**body, "output": []}}]


@WAYS
def test_annotations_of_responses_are_sources_in_the_whole_text(stream: bool) -> None:
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 2}
    file = {"type": "container_file_citation", "file_id": "f", "filename": "a.csv", "container_id": "c"}
    pieces = [
        {"type": "output_text", "text": "hello "},
        {"type": "output_text", "text": "you", "annotations": [cited, file]},
    ]
    body = {"status": "completed", "output": [{"type": "message", "content": pieces}]}
    answer = read(OpenAIResponsesWire(), body, response_frames(body) if stream else None)
    assert answer.message.text[6:8] == "yo"
    assert answer.sources == (Source("u", "t", start=6, end=8), Source(title="a.csv"))


WEB = {"type": "web_search_result_location", "url": "u", "title": "t", "cited_text": "said", "encrypted_index": "e"}
PAGE = {"type": "page_location", "cited_text": "page", "document_title": "d", "document_index": 0}


def message_frames(blocks: list[dict[str, Any]], reason: str, **details: Any) -> list[Any]:
    frames: list[Any] = [{"type": "message_start", "message": {"type": "message", "id": "m", "content": []}}]
    for index, block in enumerate(blocks):
        begun, deltas = dict(block), list[Any]()
        if block["type"] == "text":
            begun["text"] = ""
            deltas = [{"type": "text_delta", "text": block["text"]}]
            deltas += [{"type": "citations_delta", "citation": each} for each in begun.pop("citations", ())]
        elif block["type"] == "server_tool_use":
            begun["input"] = {}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in (text[:4], text[4:])]
        frames.append({"type": "content_block_start", "index": index, "content_block": begun})
        frames += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    delta = {"stop_reason": reason, **details}
    return [*frames, {"type": "message_delta", "delta": delta, "usage": {}}, {"type": "message_stop"}]


@WAYS
def test_citations_of_messages_are_sources_of_their_block(stream: bool) -> None:
    blocks = [{"type": "text", "text": "well, "}, {"type": "text", "text": "so", "citations": [WEB, PAGE]}]
    body = {"type": "message", "content": blocks, "stop_reason": "end_turn"}
    answer = read(AnthropicWire(), body, message_frames(blocks, "end_turn") if stream else None)
    assert answer.sources == (Source("u", "t", "said", 6, 8), Source("", "d", "page", 6, 8))


@WAYS
def test_grounding_of_gemini_is_sources_where_its_words_stand(stream: bool) -> None:
    grounding = {
        "webSearchQueries": ["q"],
        "groundingChunks": [
            {"web": {"uri": "u1", "title": "t1"}},
            {"retrievedContext": {"uri": "u2", "title": "t2", "text": "words"}},
        ],
        "groundingSupports": [{"segment": {"startIndex": 7, "text": "übrigens"}, "groundingChunkIndices": [0, 99]}],
    }
    last = {
        "finishReason": "STOP",
        "groundingMetadata": grounding,
        "citationMetadata": {"citations": [{"uri": "u3", "startIndex": 1, "endIndex": 4}]},
        "urlContextMetadata": {"urlMetadata": [{"retrievedUrl": "u4"}]},
    }
    whole = {"candidates": [{"content": {"parts": [{"text": "ä, übrigens."}]}, **last}]}
    frames = [{"candidates": [{"content": {"parts": [{"text": "ä, übrigens."}]}}]}, {"candidates": [last]}]
    answer = read(GeminiWire(), whole, frames if stream else None)
    assert answer.sources == (
        Source("u3", start=1, end=4),
        Source("u4"),
        Source("u1", "t1", start=3, end=11),
        Source("u2", "t2", "words"),
    )


def test_sources_are_bounded_and_foreign_shapes_do_no_harm() -> None:
    notes = [{**CHAT_NOTE, "url_citation": {"url": f"u{n}"}} for n in range(500)]
    body = {"choices": [{"message": {"content": "x", "annotations": notes}, "finish_reason": "stop"}]}
    answer = read(OpenAIChatWire(), body)
    assert len(answer.sources) == 100
    assert answer.notes == ("only the first 100 sources of the answer are kept",)
    for odd in ({}, "x", 7, [7, None, "x", {"type": "url_citation", "url": 7}], [[]]):
        said = {"content": "x", "annotations": odd, "audio": odd}
        chat = {"citations": odd, "choices": [{"message": said, "logprobs": odd, "finish_reason": "stop"}]}
        assert read(OpenAIChatWire(), chat).message.text == "x"
        message = {"content": [{"type": "text", "text": "x", "citations": odd}], "stop_reason": "end_turn"}
        assert read(AnthropicWire(), {**message, "stop_details": odd}).message.text == "x"
        piece = {"type": "output_text", "text": "x", "annotations": odd}
        assert read(OpenAIResponsesWire(), {"output": [{"type": "message", "content": [piece]}]}).message.text == "x"
        candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP", "groundingMetadata": odd}
        more = {"citationMetadata": odd, "urlContextMetadata": odd, "safetyRatings": odd}
        assert read(GeminiWire(), {"candidates": [{**candidate, **more}]}).message.text == "x"


# --- tools that run at the provider ----------------------------------------------------------------------------------

SEARCHED: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "clocks"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srv_1",
        "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}],
    },
]


@WAYS
def test_blocks_of_tools_at_the_provider_go_back_as_they_came(stream: bool) -> None:
    from anthropic.types import content_block_param

    blocks = [*SEARCHED, {"type": "text", "text": "So."}]
    body = {"type": "message", "content": blocks, "stop_reason": "pause_turn"}
    answer = read(AnthropicWire(), body, message_frames(blocks, "pause_turn") if stream else None)
    assert answer.stop == "pause"
    assert answer.notes == ("tool web_search ran at the provider, which is no tool of the agent",)
    assert sent_again(AnthropicWire(), "claude-sonnet-5", answer)["messages"][1]["content"] == blocks
    for block in blocks:
        TypeAdapter(content_block_param.ContentBlockParam).validate_python(block)


def test_a_call_from_within_code_at_the_provider_keeps_its_origin() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    block = {"type": "tool_use", "id": "t1", "name": "look", "input": {}, "caller": caller}
    answer = read(AnthropicWire(), {"content": [block], "stop_reason": "tool_use"})
    assert sent_again(AnthropicWire(), "claude-sonnet-5", answer)["messages"][1]["content"] == [block]
    plain = read(AnthropicWire(), {"content": [{**block, "caller": {"type": "direct"}}], "stop_reason": "tool_use"})
    assert plain.message.parts == (ToolCall("t1", "look", "{}"),)


def _unmarked(messages: Any) -> Any:
    """Without the marks for the provider's cache."""
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    return messages


async def test_a_turn_that_paused_goes_on_from_where_it_was() -> None:
    paused = {"type": "message", "id": "m", "content": SEARCHED, "stop_reason": "pause_turn", "usage": {}}
    spoken = [*SEARCHED, {"type": "text", "text": "I look \n"}]
    bodies = [paused, {**paused, "content": spoken}, {**paused, "content": [{"type": "text", "text": "Done."}]}]
    bodies[-1]["stop_reason"] = "end_turn"
    plays = [Play(fault=Fault("status", status=200, body=json.dumps(body).encode())) for body in bodies]
    async with WireServer(plays) as server, Runtime("memory:") as runtime:
        gateway = AnthropicGateway(GatewayConfig("anthropic", f"{server.url}/v1", "k", model="claude-sonnet-5"))
        result = await runtime.run(Agent("clerk", model=gateway), "hi")
        trace = trace_of(result.run_id, await runtime.inside.runs.facts(result.run_id))
    seen = [_unmarked(request.json["messages"]) for request in server.requests]
    assert result.output == "I look \nDone."
    assert seen[1][1:] == [{"role": "assistant", "content": SEARCHED}]
    assert seen[2][1]["content"] == [*SEARCHED, *SEARCHED, {"type": "text", "text": "I look \n"}]
    assert [turn["role"] for turn in seen[2]] == ["user", "assistant", "user"]  # words at the end are refused
    assert [mark.text for mark in trace.marks if mark.kind == "note"] == [
        "tool web_search ran at the provider, which is no tool of the agent"
    ]


def test_a_call_at_the_provider_waits_for_its_result_and_is_left_out_when_something_else_is_said() -> None:
    spoken = {"type": "text", "text": "I look"}
    answer = read(AnthropicWire(), {"content": [spoken, SEARCHED[0]], "stop_reason": "pause_turn"})
    wire = AnthropicWire()
    question, more = Message("user", (Text("hi"),)), Message("user", (Text("hurry"),))

    def sent(*messages: Message) -> tuple[Any, list[str]]:
        notes: list[str] = []
        request = ModelRequest("claude-opus-4-7", messages)
        return _unmarked(wire.build_body(request, wire.names(request), stream=False, notes=notes)["messages"]), notes

    turns, notes = sent(question, answer.message)
    assert (turns[-1], notes) == ({"role": "assistant", "content": [spoken, SEARCHED[0]]}, [])
    result = read(AnthropicWire(), {"content": SEARCHED[1:], "stop_reason": "pause_turn"}).message
    turns, notes = sent(question, answer.message, result, more)
    assert (turns[1]["content"], notes) == ([spoken, *SEARCHED], [])
    turns, notes = sent(question, answer.message, more)
    assert turns[1]["content"] == [spoken]
    assert len(notes) == 1
    only = read(AnthropicWire(), {"content": SEARCHED[:1], "stop_reason": "pause_turn"}).message
    assert [turn["role"] for turn in sent(question, only, more)[0]] == ["user", "user"]


@WAYS
def test_a_turn_that_goes_on_names_the_container_where_its_code_ran(stream: bool) -> None:
    container = {"id": "container_1", "expires_at": "2026-12-01T00:00:00Z"}
    body = {"type": "message", "content": SEARCHED, "stop_reason": "pause_turn", "container": container}
    frames = message_frames(SEARCHED, "pause_turn", container=container)
    answer = read(AnthropicWire(), body, frames if stream else None)
    wire = AnthropicWire()
    question, more = Message("user", (Text("hi"),)), Message("user", (Text("and now?"),))
    for history, extra, wanted in (
        ((question, answer.message), {}, "container_1"),
        ((question, answer.message), {"container": {"skills": []}}, {"id": "container_1", "skills": []}),
        ((question, answer.message, more), {}, None),  # it may be gone
    ):
        request = ModelRequest("claude-opus-4-7", history, settings=ModelSettings(extra=extra))
        assert wire.build_body(request, wire.names(request), stream=False).get("container") == wanted


@WAYS
def test_items_of_tools_at_the_provider_and_phases_go_back_as_they_came(stream: bool) -> None:
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    said = [{"type": "output_text", "text": "I look"}], [{"type": "output_text", "text": "So."}]
    output = [
        {"type": "message", "id": "1", "role": "assistant", "content": said[0], "phase": "commentary"},
        searched,
        {"type": "message", "id": "2", "role": "assistant", "content": said[1], "phase": "final_answer"},
    ]
    body = {"status": "completed", "output": output}
    wire = OpenAIResponsesWire()
    answer = read(wire, body, response_frames(body) if stream else None)
    assert answer.notes == ("web_search_call ran at the provider, which is no tool of the agent",)
    first, item, last = sent_again(wire, "gpt-5.5", answer)["input"][1:4]
    assert (first["phase"], first["content"], item) == ("commentary", "I look", searched)
    assert (last["phase"], last["content"]) == ("final_answer", "So.")
    assert all("phase" not in each for each in sent_again(wire, "gpt-4o", answer)["input"])  # it knows of none
    from openai.types.responses import EasyInputMessageParam

    TypeAdapter(EasyInputMessageParam).validate_python(first)


@WAYS
def test_code_that_gemini_ran_goes_back_as_it_came(stream: bool) -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "c2ln"}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}
    parts = [code, result, {"text": "2"}]
    whole = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    frames = [{"candidates": [{"content": {"parts": [part]}}]} for part in parts]
    frames.append({"candidates": [{"finishReason": "STOP"}]})
    answer = read(GeminiWire(), whole, frames if stream else None)
    assert answer.notes == ("executableCode ran at the provider, which is no tool of the agent",)
    again = sent_again(GeminiWire(), "gemini-3-flash", answer)["contents"][1]["parts"]
    assert again == parts
    for part in again:
        genai.Part.model_validate(part)


# --- what is not kept, and why somebody refused ----------------------------------------------------------------------


@WAYS
def test_what_chat_completions_bring_besides_is_noted(stream: bool) -> None:
    custom = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "grammar", "input": "x"}}
    said = {"content": None, "audio": {"id": "a", "data": "UklG", "transcript": "spoken"}, "tool_calls": [custom]}
    body = {"choices": [{"message": said, "finish_reason": "stop", "logprobs": {"content": []}}, {"message": said}]}
    frames = [
        {"id": "1", "choices": [{"index": 0, "delta": said, "logprobs": {"content": []}}]},
        {"id": "1", "choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    answer = read(OpenAIChatWire(), body, frames if stream else None)
    assert answer.message.parts == (Text("spoken"),)
    assert set(answer.notes) == {
        "the spoken answer (audio) is not kept, its transcript is",
        "a call of the custom tool grammar of the answer is not kept",
        "logprobs of the answer is not kept",
        f"only the first of {'several' if stream else '2'} answers is kept",
    }


REFUSALS: list[tuple[Wire, Any, list[Any], str]] = [
    (
        OpenAIChatWire(),
        {
            "choices": [
                {
                    "message": {"content": "half an"},
                    "finish_reason": "content_filter",
                    "content_filter_results": {"hate": {"filtered": True}, "violence": {"filtered": False}},
                }
            ]
        },
        [
            {"id": "1", "choices": [{"delta": {"content": "half an"}}]},
            {
                "id": "1",
                "choices": [
                    {
                        "delta": {},
                        "finish_reason": "content_filter",
                        "content_filter_results": {"hate": {"filtered": True}},
                    }
                ],
            },
        ],
        "the provider's content filter stopped the answer (hate)",
    ),
    (
        AnthropicWire(),
        {
            "content": [{"type": "text", "text": "half an"}],
            "stop_reason": "refusal",
            "stop_details": {"type": "refusal", "category": "cyber", "explanation": "It may do harm."},
        },
        message_frames(
            [{"type": "text", "text": "half an"}],
            "refusal",
            stop_details={"type": "refusal", "category": "cyber", "explanation": "It may do harm."},
        ),
        "the model refused to answer (cyber): It may do harm.",
    ),
    (
        GeminiWire(),
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "half an"}]},
                    "finishReason": "SAFETY",
                    "finishMessage": "Unsafe.",
                    "safetyRatings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "blocked": True}],
                }
            ]
        },
        [
            {"candidates": [{"content": {"parts": [{"text": "half an"}]}}]},
            {
                "candidates": [
                    {
                        "finishReason": "SAFETY",
                        "finishMessage": "Unsafe.",
                        "safetyRatings": [{"category": "HARM_CATEGORY_HATE_SPEECH", "blocked": True}],
                    }
                ]
            },
        ],
        "the provider's content filter stopped the answer (SAFETY, HARM_CATEGORY_HATE_SPEECH): Unsafe.",
    ),
    (
        GeminiWire(),
        {"promptFeedback": {"blockReason": "BLOCKLIST", "blockReasonMessage": "A word."}},
        [{"promptFeedback": {"blockReason": "BLOCKLIST", "blockReasonMessage": "A word."}}],
        "the provider's content filter stopped the answer (BLOCKLIST): A word.",
    ),
]


@WAYS
@pytest.mark.parametrize(("wire", "body", "frames", "told"), REFUSALS)
def test_a_refusal_says_why(wire: Wire, body: Any, frames: list[Any], told: str, stream: bool) -> None:
    answer = read(wire, body, frames if stream else None)
    assert (answer.stop, answer.detail) == ("refusal", told)


def test_a_refusal_in_the_models_own_words_is_told_in_them() -> None:
    said = {"choices": [{"message": {"content": None, "refusal": "I will not."}, "finish_reason": "stop"}]}
    answer = read(OpenAIChatWire(), said)
    assert (answer.stop, answer.message.text, answer.detail) == ("refusal", "I will not.", "")


async def test_the_run_and_its_trace_tell_the_refusal_and_the_sources() -> None:
    cited = ModelResponse(Message("assistant", (Text("ok"),)), sources=(Source("https://a.example", "A"),))
    refused = ModelResponse(Message("assistant", (Text("half an"),)), stop="refusal", detail="it was filtered (hate)")

    class Telling:
        def __init__(self, answer: ModelResponse) -> None:
            self.answer = answer

        async def respond(self, request: ModelRequest, *, on_delta: Any = None) -> ModelResponse:
            return self.answer

        async def close(self) -> None: ...

    async with Runtime("memory:") as runtime:
        good = await runtime.run(Agent("a", model=Telling(cited)), "hi")
        with pytest.raises(RunFailedError, match=r"^it was filtered \(hate\)$"):
            await runtime.run(Agent("b", model=Telling(refused)), "hi")
        trace = trace_of(good.run_id, await runtime.inside.runs.facts(good.run_id))
    assert trace.steps[0].sources == cited.sources
    assert [mark.text for mark in trace.marks if mark.kind == "note"] == [
        "the answer names as its sources: A https://a.example"
    ]


def test_reasoning_that_carries_a_block_shows_nothing() -> None:
    answer = read(AnthropicWire(), {"content": SEARCHED, "stop_reason": "end_turn"})
    assert all(isinstance(part, Reasoning) and not part.text for part in answer.message.parts)
