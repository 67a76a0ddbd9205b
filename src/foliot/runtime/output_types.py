"""The Python type of an agent's answers: its JSON Schema for the model, and its validators for what the model says.

A schema cannot say what a validator wants. So the type looks at each final answer before it is accepted, and what it
refuses goes back to the model as any answer that does not fit. Validators are code of others: they run on a thread,
within a time limit, and whatever they raise is a reason to refuse the answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import Struct

from foliot.common.threads import ToldToEnd, begin
from foliot.engine.driver.intake import read_answer
from foliot.errors import InvalidInput, UsageError
from foliot.kernel.run.spec import RunSpec, digest
from foliot.resources.digest import canonical_json
from foliot.resources.validators import Validator, validator_of
from foliot.tools.base import CheckedOutput

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

# In the `extra` of a spec: the type that looks at the answers of the run, and the digest of the schema that it gave.
OUTPUT_TYPE: Final = "output_type"
# As long as a call of a function that says nothing else.
SECONDS: Final = 30.0
# Texts of validators go to the model and into the journal: the beginning of one says what is wrong.
LONGEST_PROBLEM: Final = 1_000
# So many values are kept for whoever asks for the result of a run that was accepted here. Others are made anew.
MOST_KEPT: Final = 256


class OutputPin(Struct, frozen=True):
    """The pin of a run to the type: its name, and the digest of its schema, which tells another schema apart."""

    name: str
    schema: str


class _Verdict(Struct, frozen=True):
    """`value` is the answer as JSON after the validators, `made` the same as Python knows it."""

    problems: list[str] = []
    value: Any = None
    made: Any = None


class OutputType:
    """A pydantic model, or any other type that pydantic understands, as the type of an agent's answers."""

    def __init__(self, agent: str, output: Any, *, seconds: float = SECONDS) -> None:
        """Raises `UsageError` for what is no such type, and for validators that would have to be awaited."""
        from pydantic import PydanticUserError, TypeAdapter

        self.name: str = getattr(output, "__name__", None) or str(output)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(output)
            self.schema: dict[str, Any] = self._adapter.json_schema()
        except PydanticUserError as error:
            raise UsageError(
                f"the output of Agent({agent!r}) cannot be {output!r:.80}: {error.message.splitlines()[0]}",
                hint="give a pydantic model, a type such as list[str], or a JSON Schema",
            ) from None
        for validator in _validators(self._adapter.core_schema):
            if inspect.iscoroutinefunction(validator):
                raise UsageError(
                    f"the output of Agent({agent!r}) has an async validator, {validator.__qualname__}, and pydantic "
                    "awaits none: it would refuse nothing",
                    hint="write it without async; it runs on a thread and may block",
                )
        self._seconds = seconds
        self._validator: Validator | None = None
        self._kept: dict[str, tuple[str, Any]] = {}  # by run: the answer, and what was made of it

    @property
    def pin(self) -> OutputPin:
        return OutputPin(self.name, _schema_digest(self.schema))

    async def check(self, run_id: str, text: str, seconds: float | None) -> CheckedOutput:
        """Hold an answer that fits the schema against the type, in at most so many seconds. An `OutputCheck`."""
        verdict = await self._judge(text, self._seconds if seconds is None else min(seconds, self._seconds))
        if not verdict.problems:
            self._kept.pop(run_id, None)
            self._kept[run_id] = text, verdict.made
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return CheckedOutput(verdict.value, verdict.problems)

    async def value_of(self, run_id: str, text: str) -> Any:
        """The value of an answer that was accepted, as Python knows it.

        Validators are asked once in the process that accepts it, and again where the answer is read later. Raises
        `InvalidInput` when they refuse it now.
        """
        answer, made = self._kept.pop(run_id, ("", None))
        if answer == text:
            return made
        verdict = await self._judge(text, self._seconds)
        if verdict.problems:
            raise InvalidInput(
                f"the answer of run {run_id} was accepted, but {self.name} refuses it now: "
                f"{'; '.join(verdict.problems)}",
                hint="its validators have changed since, or go by more than the answer; `foliot trace` shows it",
            )
        return verdict.made

    async def _judge(self, text: str, within: float) -> _Verdict:
        """Ask the validators on a thread: they are code of others, which may block, never end, or raise anything."""
        job = begin(self._validate, text)
        try:
            async with asyncio.timeout(within):
                return await job.future
        except TimeoutError:
            job.tell_to_end()
            return _Verdict([f"{self.name}: its validators did not end within {within:g} seconds"])
        except asyncio.CancelledError:
            job.tell_to_end()
            raise

    def _validate(self, text: str) -> _Verdict:
        from pydantic import ValidationError

        said = read_answer(text)
        try:
            made = self._adapter.validate_json(msgspec.json.encode(said))
        except ValidationError as error:
            return _Verdict(_problems(error))
        except ToldToEnd:
            raise
        except BaseException as error:  # whatever it is: a validator may neither end the process nor break the run
            return _Verdict([f"{self.name}: its validator raised {_in_words(error)}"[:LONGEST_PROBLEM]])
        return _Verdict(value=self._as_json(made, said), made=made)

    def _as_json(self, made: Any, said: Any) -> Any:
        """The value that validators made, as JSON; the answer itself when that value does not fit the schema."""
        if self._validator is None:
            self._validator = validator_of(self.schema)
        try:
            value = msgspec.json.decode(self._adapter.dump_json(made, by_alias=True, warnings=False))
        except ToldToEnd:
            raise
        except BaseException:  # serializers are code of others too
            return said
        return value if self._validator.is_valid(value) else said


def is_pinned(spec: RunSpec) -> bool:
    """Whether a type looks at the answers of a run of this spec: not when another schema has taken the place of its."""
    pin = spec.extra.get(OUTPUT_TYPE)
    return pin is not None and spec.output_schema is not None and pin["schema"] == _schema_digest(spec.output_schema)


def _schema_digest(schema: Mapping[str, Any]) -> str:
    return digest(canonical_json(schema))


def _problems(error: ValidationError) -> list[str]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [f"{'/'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}"[:LONGEST_PROBLEM] for each in found]


def _in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its text is made by the validator
        return type(error).__name__


def _validators(schema: object) -> Iterator[Any]:
    """All functions in pydantic's own schema of a type, and the methods that models call after they are made."""
    pending, seen = [schema], set[int]()
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            found = cast("Mapping[str, Any]", node)
            if id(found) in seen:
                continue
            seen.add(id(found))
            if callable(function := found.get("function")):
                yield function
            if isinstance(after := found.get("post_init"), str) and callable(
                method := getattr(found.get("cls"), after, None)
            ):
                yield method
            pending.extend(each for name, each in found.items() if name not in ("metadata", "serialization"))
        elif isinstance(node, list | tuple):
            pending.extend(cast("list[Any]", node))
