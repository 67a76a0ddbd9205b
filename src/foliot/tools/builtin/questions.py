"""Tools that ask somebody and wait for the answer: a person, or the program that began the run."""

from __future__ import annotations

from typing import Any, Final

from foliot.kernel.messages import ToolSpec
from foliot.tools.base import Invocation, OnOutput, Question, ToolArgumentsInvalid, ToolDefinition, ToolUnsupported
from foliot.tools.builtin.arguments import (
    object_schema,
    optional,
    optional_text,
    required_text,
    text,
    texts,
    whole_number,
)

LONGEST_QUESTION: Final = 4_000
LONGEST_CHOICE: Final = 500
MOST_CHOICES: Final = 20
# Every wait ends: a question that nobody answers for a week is not answered any more.
LONGEST_WAIT: Final = 7 * 24 * 3600
# A client that has not sent the result of its own tool after a day has forgotten the run, or never meant to.
CLIENT_WAIT: Final = 24 * 3600


class AskUser:
    """Parks its call. The run holds nothing while it waits, and what is answered is the result, word for word."""

    definition = ToolDefinition(
        name="ask_user",
        description=(
            "Asks a person a question and waits for the answer, however long it takes. Ask only what you cannot find "
            "out or decide yourself, and everything you need to know at once."
        ),
        schema=object_schema(
            {
                "question": text(
                    "The question, with what is needed to answer it.", minLength=1, maxLength=LONGEST_QUESTION
                ),
                "choices": optional(
                    "array",
                    "The possible answers, when there are only a few: the person picks one of them.",
                    items={"type": "string", "minLength": 1, "maxLength": LONGEST_CHOICE},
                    maxItems=MOST_CHOICES,
                ),
                "default": optional("string", "The answer to go on with when nobody answers in time."),
                "timeout_seconds": optional("integer", "How long to wait. Without a default, nobody answering fails."),
            },
            ["question"],
        ),
        effect="idempotent",
        category="orchestration",
        timeout=None,  # nothing is run; the question has an end of its own
        breaker=False,
    )

    def question(self, call: Invocation) -> Question:
        asked = required_text(call, "question")
        choices = tuple(choice.strip() for choice in texts(call, "choices"))
        if len(set(choices)) != len(choices) or not all(choices):
            raise ToolArgumentsInvalid("choices must be different, non-empty strings", field="choices")
        if len(choices) == 1:
            raise ToolArgumentsInvalid("choices must be at least two: one is no choice", field="choices")
        default = optional_text(call, "default")
        if default is not None and choices and default.strip() not in choices:
            raise ToolArgumentsInvalid("default must be one of the choices", field="default")
        seconds = whole_number(call, "timeout_seconds", LONGEST_WAIT, least=1, most=LONGEST_WAIT)
        return Question(asked.strip(), choices, default.strip() if default and choices else default, float(seconds))

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Never called by a run: its call is parked before. Raises `ToolUnsupported`."""
        raise ToolUnsupported("ask_user waits for a person, and only a run can wait")


class ClientTool:
    """A tool that the client of a run brings along and calls itself: the call is parked until it sends the result."""

    def __init__(self, spec: ToolSpec) -> None:
        # What it does is the client's to know. Here nothing is done, so nothing is done twice.
        self.definition = ToolDefinition(
            name=spec.name,
            description=spec.description,
            schema=spec.schema,
            effect="idempotent",
            type="client",
            category="client",
            timeout=None,
            breaker=False,
        )

    def question(self, call: Invocation) -> Question:
        return Question(f"{call.tool} is called by the client of this run", seconds=float(CLIENT_WAIT), client=True)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Never called by a run: its call is parked before. Raises `ToolUnsupported`."""
        raise ToolUnsupported(f"{call.tool!r} is called by the client of a run, and there is none here")
