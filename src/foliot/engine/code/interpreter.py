"""Programs in Monty, an interpreter of a part of Python that has no files, no network, no clock and no environment.

It runs in processes of its own, without any file of ours, so that one that breaks it breaks nothing else. A program is
run from its start at each question: 45 µs for each call that it has made, and what it computes itself. Time and chance
are the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from foliot.common.threads import on_thread
from foliot.engine.code.conversation import (
    MOST_AT_ONCE,
    MOST_PRINTED,
    Answer,
    Call,
    Course,
    Turn,
    allowed,
    answers_to,
    asked_for,
    ended,
    failure,
)
from foliot.errors import Unavailable
from foliot.models.base import ModelOverloaded, ModelRequestError
from foliot.version import install_command

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, FutureSnapshot, Monty, MontySession, NameLookupSnapshot

    Snapshot = FunctionSnapshot | FutureSnapshot | NameLookupSnapshot

# Processes of the interpreter, at most; who finds none free waits so long.
MOST_PROCESSES: Final = 4
WAIT_SECONDS: Final = 60.0
# The longest that a program may be allowed to compute, and a little: then its process is ended from outside.
LONGEST_SECONDS: Final = 3600.0 + 5.0
MEMORY: Final = 256 * 1024 * 1024
# Not only calls leave the interpreter: names that are looked up do too, and attempts at files.
MOST_LEAVES: Final = 100_000
# The clock stands still here, so that a program sees the same time whenever it is run.
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
# Exceptions that tools raise have a name of their own. The interpreter knows no classes with bases, so it is an alias.
_PRELUDE: Final = "ToolError = RuntimeError"
_FILE: Final = "<python-input-1>"


class Interpreter:
    """A `Runner`. Its processes are started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Monty | None = None
        self._closed = False

    async def run(self, course: Course) -> Turn:
        """Run a program; see `Runner`. It goes on for a moment when whoever waits for it no longer does."""
        return await on_thread(self._run, course)

    async def close(self) -> None:
        await on_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            pool.__exit__(None, None, None)

    def _opened(self) -> Monty:
        try:
            from pydantic_monty import Monty
        except ImportError:
            raise ModelRequestError(
                "programs need the package pydantic-monty, which is not installed here",
                hint=install_command("code"),
            ) from None
        with self._lock:
            if self._closed:
                raise Unavailable("the runtime is closing")
            if self._pool is None:
                pool = Monty(
                    max_processes=MOST_PROCESSES, checkout_timeout=WAIT_SECONDS, request_timeout=LONGEST_SECONDS
                )
                self._pool = pool.__enter__()
            return self._pool

    def _run(self, course: Course) -> Turn:
        try:
            pool = self._opened()
        except (OSError, Unavailable) as error:
            raise ModelOverloaded(f"the interpreter cannot be started: {error}") from None
        from pydantic_monty import MontyCrashedError, MontyError, MontyRuntimeError, MontySyntaxError

        printed = _Printed()
        try:
            with pool.checkout(
                limits={
                    "max_feed_duration_secs": course.program.seconds,
                    "max_memory": MEMORY,
                    "max_suspensions": MOST_LEAVES,
                },
                os_policy={"datetime": NOW, "sleep": "zero", "random_start": {"seed": 0}},
            ) as session:
                return _Execution(course, session, printed).run()
        except (MontySyntaxError, MontyRuntimeError) as error:
            raise failure(error.display().replace(f'File "{_FILE}", line', "Line"), printed.text) from None
        except MontyCrashedError as error:
            raise failure(f"the program broke the interpreter: {error}", printed.text) from None
        except MontyError as error:
            raise failure(str(error), printed.text) from None
        except TimeoutError:
            raise ModelOverloaded("no process of the interpreter was free for a minute") from None


class _Printed:
    """Keeps what a program prints, up to a bound: more ends it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._left = MOST_PRINTED

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def __call__(self, stream: str, text: str) -> None:
        self._parts.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            self._left = 0
            raise MemoryError(f"the program printed more than {MOST_PRINTED:,} characters")


class _Execution:
    """One program from its start to where it waits for an answer that is not there."""

    def __init__(self, course: Course, session: MontySession, printed: _Printed) -> None:
        self._course = course
        self._session = session
        self._printed = printed
        self._left = list(course.batches)
        self._calls: dict[int, Call] = {}  # those that have no answer yet

    def run(self) -> Turn:
        from pydantic_monty import FunctionSnapshot, MontyComplete, NameLookupSnapshot

        self._session.feed_run(_PRELUDE)
        at = self._session.feed_start(self._course.source, print_callback=self._printed)
        while not isinstance(at, MontyComplete):
            if isinstance(at, FunctionSnapshot):
                at = at.resume_not_handled() if at.is_os_function else at.resume(self._asked(at))
            elif isinstance(at, NameLookupSnapshot):
                known = at.variable_name in self._course.functions and at.object_id is None
                at = at.resume(value=_function(at.variable_name)) if known else at.resume()
            else:
                waiting = [self._calls[number] for number in sorted(at.pending_call_ids)]
                calls = waiting[:MOST_AT_ONCE]
                if not self._left:
                    return allowed(self._course, calls)
                at = at.resume(self._answered(calls))
        return ended(self._printed.text, at.output, tuple(call.tool for call in self._calls.values()))

    def _asked(self, at: FunctionSnapshot) -> Any:
        """Returns what a call of a function gives at once: something to await, or an error of the program's own."""
        try:
            call = asked_for(self._course, at.call_id, str(at.function_name), at.args, at.kwargs)
        except (NameError, TypeError) as error:
            return {"exception": error}
        self._calls[at.call_id] = call
        return {"future": ...}

    def _answered(self, calls: Sequence[Call]) -> dict[int, Any]:
        answers = answers_to(calls, self._left.pop(0))
        for number in answers:
            del self._calls[number]
        return {number: _result(answer) for number, answer in answers.items()}


def _result(answer: Answer) -> Any:
    return {"exception": RuntimeError(answer.error)} if answer.error else {"return_value": answer.value}


def _function(name: str) -> Any:
    def call() -> None: ...

    call.__name__ = call.__qualname__ = name
    return call
