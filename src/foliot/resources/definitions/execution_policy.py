"""The execution policy in an Agent or a Task: where programs of a run run, what they may reach, who is asked before.

Words, bounds and the texts of refusals are those of `kernel/execution.py`, which says what each field means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from foliot.kernel.execution import (
    LONGEST_DELAY_MS,
    MOST_ATTEMPTS,
    RESOURCES,
    WORDS,
    resource_problem,
    retry_problem,
    word_problem,
)
from foliot.resources.base import Model
from foliot.resources.fields import MARK_ANY_CASE, Forgiving, as_whole, lowered, refusal


def _word(field: str) -> Forgiving:
    """One of the words of a field, in any case; the field's own text refuses others."""

    def check(value: Any) -> Any:
        word = lowered(value)
        if isinstance(word, str) and (wrong := word_problem(field, word[:80])):
            raise refusal(wrong, expected=" or ".join(WORDS[field]))
        return word

    return Forgiving(check, MARK_ANY_CASE)


def _amount(name: str) -> Callable[[Any], Any]:
    """An amount of one resource. A fraction is cut off."""
    most, unit = RESOURCES[name]

    def check(value: Any) -> Any:
        if wrong := resource_problem(name, value):
            raise refusal(wrong, expected=f"a number from 0 to {most}{unit}")
        return int(value)

    return check


def _retries(field: str, most: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        value = as_whole(value)
        if isinstance(value, int) and not isinstance(value, bool) and (wrong := retry_problem(field, value)):
            raise refusal(wrong, expected=f"a number from 0 to {most}")
        return value

    return check


def _numbers(most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "number", "minimum": 0, "maximum": most})


class ExecutionResources(Model):
    """How much of the machine the programs of a run get. 0 leaves one to the worker."""

    cpu: Annotated[int, BeforeValidator(_amount("cpu")), _numbers(RESOURCES["cpu"][0])] | None = Field(
        default=None, description="Processors in thousandths of one: 500 is half a processor."
    )
    memory: Annotated[int, BeforeValidator(_amount("memory")), _numbers(RESOURCES["memory"][0])] | None = Field(
        default=None, description="Memory in bytes, of all programs of a call together."
    )
    gpu: Annotated[int, BeforeValidator(_amount("gpu")), _numbers(RESOURCES["gpu"][0])] | None = Field(
        default=None, description="GPUs. No fence can give any today: a call that needs one is refused."
    )


class ExecutionRetry(Model):
    """How often a run is tried, where its task says nothing of that."""

    max_attempts: Annotated[
        int, Field(ge=0, le=MOST_ATTEMPTS), BeforeValidator(_retries("max_attempts", MOST_ATTEMPTS))
    ] = Field(default=0, description="Attempts in all; 0 means 2.")
    delay_ms: Annotated[
        int, Field(ge=0, le=LONGEST_DELAY_MS), BeforeValidator(_retries("delay_ms", LONGEST_DELAY_MS))
    ] = Field(default=0, description="Milliseconds before the second attempt, then twice as long.")


class ExecutionPolicy(Model):
    """How programs of a run are executed. What is not given says nothing; the strictest of agent and task holds."""

    host: Annotated[Literal["sandbox"], _word("host")] | None = Field(
        default=None, description="Where programs run: sandbox, on the machine of the worker."
    )
    security: Annotated[Literal["deny", "allowlist", "full"], _word("security")] | None = Field(
        default=None,
        description="Tools that run programs: none of them, those in the agent's allowed_tools (allowlist, the "
        "default), or all that the agent has.",
    )
    ask: Annotated[Literal["off", "on-miss", "always"], _word("ask")] | None = Field(
        default=None,
        description="When a person is asked before a program runs: never (off, the default), when it is not on the "
        "list, or always.",
    )
    runtime_type: Annotated[Literal["gvisor", "runc", "process"], _word("runtime_type")] | None = Field(
        default=None,
        description="The weakest fence that will do: gvisor, runc (a container) or process. Without it, that of the "
        "tool.",
    )
    workspace_access: Annotated[Literal["none", "ro", "rw"], _word("workspace_access")] | None = Field(
        default=None, description="What programs may do with the workspace: nothing, read, or write (rw, the default)."
    )
    network_enabled: bool | None = Field(
        default=None, description="false: programs have no network at all. true: as their tool declares."
    )
    interactive: bool | None = Field(
        default=None,
        description="false: an agent that is a program has no terminal and asks no person. Else as the runner says.",
    )
    resources: ExecutionResources = Field(
        default_factory=ExecutionResources, description="How much of the machine programs get at most."
    )
    retry: ExecutionRetry | None = Field(
        default=None, description="How often a run is tried, where its task says nothing of that."
    )
