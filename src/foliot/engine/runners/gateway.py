"""A runner: the gateway of runs whose agent is an external program. A question is a turn of the program.

The program is started in a fence, told what is new in the conversation, and its output is shown as it comes. What it
said by the end of the turn is one answer in the journal, so that inputs, approvals, budgets, limits, cancelling,
retries, traces and forks hold for it as for any agent.

    text      the prompt on standard input, or where the command says {prompt}; what it prints is the answer
    jsonl     lines, see lines.py. A call of a tool ends the turn: it goes through the same pipeline as a model's, and
              the program, which waits, is told the result in the next one
    terminal  as text, on a terminal of 180 columns and 40 rows; control sequences are shown and not stored

A program that waits for a result lives as long as this process drives the run: when the run is let go, to wait for a
person for example, it ends. Then, after a crash, or on another worker, it is started again, with the session that it
named (which is kept in the journal) and all that was said and done. So it has to be ready for that at every call.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets as chance
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec

from foliot.engine.base import ASKING, AskingRun
from foliot.engine.definition.grants import OperatorGrants
from foliot.engine.driver.intake import caller_of
from foliot.engine.runners.adapters import ASK_USER, RunnerAdapter, find_adapter
from foliot.engine.runners.conversation import WIRE, CallOutcome, TurnMark, conversation_of
from foliot.engine.runners.lines import (
    SaidQuestion,
    as_text,
    clean,
    encoded,
    parsed,
    stripped,
    told_messages,
    told_result,
)
from foliot.engine.runners.profile import (
    LONGEST_VARIABLE,
    REFERENCE,
    RUNNER,
    RunnerSpec,
    TurnFacts,
    environment_of,
    folder_of,
    session_of,
    with_folder,
)
from foliot.engine.runners.program import (
    LONGEST_ANSWER,
    LONGEST_LINE,
    LONGEST_LOG,
    LONGEST_REASON,
    RunningProgram,
    Turn,
    nobody,
)
from foliot.errors import Denied, InvalidInput
from foliot.kernel.execution import Outcome, classify_execution_outcome
from foliot.kernel.messages import (
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.kernel.tokens import estimate_request, estimate_text
from foliot.models.base import ModelError, ModelRequestError, OnDelta
from foliot.models.routing.router import UNBOUNDED_OUTPUT
from foliot.models.routing.usage import UsageQuote, mark_cut
from foliot.models.wire.opaque import mark
from foliot.resources.command_template import filled_command, placeholders
from foliot.sandbox.base import (
    MIB,
    WORKSPACE,
    WORKSPACE_FULL,
    Finished,
    SandboxError,
    SandboxPathRefused,
    SandboxSession,
    SandboxStartFailed,
)
from foliot.tools.base import ToolError
from foliot.tools.builtin.questions import LONGEST_QUESTION, MOST_CHOICES
from foliot.tools.declared_fences import fence_request
from foliot.tools.fences import FenceRequest, Fences, Narrowed
from foliot.tools.governance.execution import agent_program_objection
from foliot.tools.workspaces import FenceOwner, folder_identity

log = logging.getLogger(__name__)

ROWS, COLUMNS = 40, 180
# How long a program may take to end that has closed its output, or has said that its turn is over.
GRACE: Final = 5.0
# Where programs keep their sessions, if they are to go on with them: with the workspace they go where the run goes.
HOME: Final = f"{WORKSPACE}/.home"
# A program that cannot speak lines asks a person by leaving its question in this file.
QUESTION_FILE: Final = ".foliot-question"
# Where programs and their files are seen, and words of a command that are paths of files.
INSIDE: Final = "/usr, /bin, the workspace, and the mounts of its sandbox"
SEEN: Final = (f"{WORKSPACE}/", "/usr/", "/bin/", "/tmp/")
_FILE: Final = re.compile(r"(?!-)[^\s{}]*(/[^\s{}]*|\.[A-Za-z]\w{0,4})")
NOTHING_SAID: Final = "The program ended without a word."

# How an exchange came to its end: the program said so, closed its output, or was silent for too long.
EndOfTurn: TypeAlias = Literal["said", "closed", "idle"]


class RunnerFailed(ModelError):
    """The program failed: by its exit code, or as it said itself."""

    kind = "program"


class RunnerCancelled(ModelError):
    """The program said that its work was cancelled. Another attempt would go against that."""

    kind = "program_cancelled"


class RunnerTimedOut(ModelError):
    """The turn took longer than it may. Its task may try again; the run itself does not."""

    kind = "timeout"


class RunnerLost(ModelError):
    """The end of the turn is not known: the fence broke."""

    kind = "lost"
    retryable = True


_FAILURES: Final[Mapping[Outcome, type[ModelError]]] = {
    "error": RunnerFailed,
    "timeout": RunnerTimedOut,
    "cancelled": RunnerCancelled,
    "lost": RunnerLost,
}


# --- the gateway -----------------------------------------------------------------------------------------------------


class RunnerGateway:
    """Answers for all runs of one process whose agents are programs. It is asked inside of runs only."""

    def __init__(self, fences: Callable[[], Fences], *, grants: OperatorGrants, grace: float = GRACE) -> None:
        """`grants` are held against the programs of agents that somebody else than the operator declared."""
        self._fences = fences
        self.grants = grants
        self._grace = grace
        self._waiting: dict[str, RunningProgram] = {}  # programs that wait for results, by their runs

    def quote(self, spec: RunSpec, request: ModelRequest) -> UsageQuote:
        """Estimates a turn for budgets: its price is the one that the agent declares, or unknown."""
        cost = runner_of(spec).turn_cost_usd
        named = f"the runner of {spec.agent}" if cost is None else ""
        return UsageQuote(
            estimate_request(request), UNBOUNDED_OUTPUT, cost_usd=cost, source="estimated", unpriced=named
        )

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        """Do one turn. Raises `ModelError`."""
        asking = ASKING.get()
        if asking is None:
            raise ModelRequestError("a runner does the turns of runs, and nothing else")
        work = _Work(self, asking, request, on_delta)
        try:
            return await work.answer()
        except ToolError as error:  # the fence could not be had, or the workspace not kept
            failure = ModelRequestError(error.message, hint=error.hint, retryable=error.retryable)
            raise failure from None
        except SandboxStartFailed as error:
            raise RunnerFailed(error.message, hint=error.hint) from None
        except SandboxError as error:
            raise RunnerLost(f"the sandbox of the program failed: {error.message}", hint=error.hint) from None

    def take(self, run_id: str) -> RunningProgram | None:
        """The program of a run that waits, if there is one. Whoever takes it ends it, or keeps it again."""
        return self._waiting.pop(run_id, None)

    def keep(self, asking: AskingRun, program: RunningProgram) -> None:
        """Let a program wait for the results of its calls, for as long as its run is driven here."""
        run_id = asking.state.run_id
        self._waiting[run_id] = program
        asking.on_release(partial(self.release, run_id))

    async def release(self, run_id: str) -> None:
        """End the program of a run that is no longer driven here. Never raises."""
        if (program := self.take(run_id)) is not None:
            try:
                await program.close()
            except SandboxError as error:
                log.warning("the sandbox of the program of run %s did not close: %s", run_id, error.message)

    async def close(self) -> None:
        for run_id in list(self._waiting):
            await self.release(run_id)

    @property
    def fences(self) -> Fences:
        return self._fences()

    @property
    def grace(self) -> float:
        return self._grace

    def check(self, runner: RunnerSpec, agent: str) -> None:
        """Raises `ModelRequestError` unless the command of a runner may be started here."""
        try:
            self.grants.check_runner(runner, agent)
        except Denied as denied:
            raise ModelRequestError(denied.message, hint=denied.hint) from None


def runner_of(spec: RunSpec) -> RunnerSpec:
    """The runner that a run is pinned to. Raises `ModelRequestError` for one that cannot be read."""
    try:
        return msgspec.convert(spec.extra.get(RUNNER), RunnerSpec)
    except msgspec.ValidationError as error:
        raise ModelRequestError(f"the runner of this run cannot be read: {error}") from None


class _Work:
    """One turn: from the question to the answer."""

    def __init__(
        self, gateway: RunnerGateway, asking: AskingRun, request: ModelRequest, on_delta: OnDelta | None
    ) -> None:
        self._gateway = gateway
        self._asking = asking
        self._state: State = asking.state
        self._request = request
        self._on_delta = on_delta
        self._runner = runner_of(asking.state.spec)
        self._talk = conversation_of(request.messages)
        try:
            self._adapter: RunnerAdapter = find_adapter(self._runner.type)
        except InvalidInput as error:
            raise ModelRequestError(error.message, hint=error.hint) from None
        self._owner = FenceOwner(
            RUNNER, caller_of(self._state), self._state.run_id, f"turn_{self._state.spent.steps + 1}"
        )

    @property
    def _speaks(self) -> bool:
        return self._runner.protocol == "jsonl" and self._adapter.speaks_lines

    async def answer(self) -> ModelResponse:
        program = await self._waiting()
        if self._talk.has_expired:
            return self._left()
        turn = Turn(self._on_delta)
        if program is not None:
            self._go_on(program)
            return await self._done(program, turn)
        self._check()
        ways = self._ways()
        for place, arguments in enumerate(ways):
            try:
                return await self._done(await self._started(arguments), turn)
            except RunnerFailed:
                # A program that cannot go on with its session says so and ends, before it has done anything.
                if place + 1 == len(ways) or not turn.is_silent:
                    raise
            turn = Turn(self._on_delta)
        raise AssertionError("the last way returns or raises")

    def _check(self) -> None:
        """Raises `ModelRequestError` unless the program may run here, by what holds now."""
        self._gateway.check(self._runner, self._state.spec.agent)
        caller, command = self._owner.caller, self._runner.command
        if caller.execution is None:
            return
        if objection := agent_program_objection(caller.execution, command, caller.allowed_commands):
            raise ModelRequestError(
                f"the execution policy of the run: {objection}",
                hint="let an agent with a model do it, or allow its program by security, ask and allowed_commands",
            )
        if self._is_silent and self._runner.protocol == "terminal":
            raise ModelRequestError(
                "the execution policy of the run: interactive is false, and the program of its agent needs a terminal",
                hint="give spec.runner another protocol, or leave interactive out of the execution_policy",
            )

    async def _waiting(self) -> RunningProgram | None:
        """The program of the run that waits, if it may continue as it is. Another one is ended."""
        program = self._gateway.take(self._state.run_id)
        if program is None:
            return None
        try:
            if await self._goes_on(program):
                return program
        except BaseException:
            await program.close()
            raise
        await program.close()
        return None

    async def _goes_on(self, program: RunningProgram) -> bool:
        """Whether this program waits for what is to be said now, in the fence that it would get now.

        Rules may have changed while it waited: one in a wider fence is ended and started again. Raises as `_check`, and
        `ToolError`.
        """
        if program.turn != self._talk.last.turn or self._talk.has_expired or program.process.finished is not None:
            return False
        self._check()
        fences, policy = self._gateway.fences, program.session.policy
        found = await self._narrowed()
        folder, access = await fences.workspace(found.request.workspace, self._owner)
        if (program.fence, policy.workspace_access) != (found, access):
            return False
        program.owner = self._owner
        # It was ended for that if its files had to be restored.
        return program.session.alive and program.folder == (None if folder is None else folder_identity(folder))

    async def _narrowed(self) -> Narrowed:
        """The fence of the program as rules leave it now, whichever rules these are. Raises `ToolDenied`."""
        found = await self._gateway.fences.narrowed(self._fence(), self._owner.caller)
        return msgspec.structs.replace(found, taken=())

    def _left(self) -> ModelResponse:
        """The answer of a session that ends because nobody answered its question: what it had said by then."""
        before = self._talk.before
        assert before is not None, "a question was asked in a turn"
        asked = next((call.arguments for call in before.calls if call.name == ASK_USER), "{}")
        said = before.text.strip() or str(msgspec.json.decode(asked).get("question", ""))
        message = Message("assistant", (Reasoning(opaque=self._mark(self._talk.last.session)[0]), Text(said)))
        return self._response(message, Usage(), ("the session ended: nobody answered its question",))

    def _ways(self) -> list[tuple[str, ...]]:
        """The arguments to try, one after the other, to begin or to go on."""
        runner = self._runner
        if not self._talk.last.turn or not runner.resume:
            return [()]
        return [runner.resume, *([runner.resume_latest] if runner.resume_latest else [])]

    # --- starting ----------------------------------------------------------------------------------------------------

    async def _started(self, arguments: tuple[str, ...]) -> RunningProgram:
        runner, state = self._runner, self._state
        resumes = bool(arguments)
        name = self._talk.last.session or session_of(state.run_id)
        fence = await self._narrowed()
        session = await self._gateway.fences.open_narrowed(fence, self._owner)
        try:
            folder = await self._folder(session)
            system = with_folder(self._request.system, folder)
            if len(system.encode("utf-8", "replace")) > LONGEST_VARIABLE:
                raise ModelRequestError("the prompt of the agent is too long for a program", hint="make it shorter")
            # A program without sessions of its own is told everything each time.
            told = self._talk.new if resumes else self._request.messages
            prompt = as_text(told)
            values = {
                "prompt": prompt,
                "session": name,
                "model": runner.model or None,
                "provider": runner.provider,
                "system_prompt": system or None,
                "workspace_dir": folder,
            }
            command = (*runner.command, *arguments)
            try:
                argv = filled_command(command, values)
            except InvalidInput as error:
                raise ModelRequestError(f"the command cannot be made: {error.message}", hint=error.hint) from None
            facts = self._facts(name, system, folder, resumes or bool(self._talk.last.turn))
            environment = environment_of(runner, facts)
            if resumes or runner.resume:
                environment = {"HOME": HOME, **environment} if self._is_writable(session) else environment
            process = await session.start(
                argv,
                pty=runner.protocol == "terminal",
                environment=environment,
                cwd=folder,
                rows=ROWS,
                columns=COLUMNS,
            )
        except BaseException:
            await session.close()
            raise
        program = RunningProgram(session, process, self._owner, name, fence)
        program.gone = self._gateway.fences.resides(session.policy, self._owner, program.close)
        if self._speaks:
            program.write(self._start_line(name, system, prompt), last=False)
        elif any("prompt" in placeholders(word) for word in command):
            program.write(b"", last=runner.protocol != "terminal")
        elif runner.protocol == "terminal":
            program.write(f"{prompt}\n".encode("utf-8", "replace"), last=False)
        else:
            program.write(prompt.encode("utf-8", "replace"), last=True)
        return program

    def _fence(self) -> FenceRequest:
        runner = self._runner
        return fence_request(
            runner.sandbox,
            namespace=self._state.spec.namespace,
            bound=not runner.operator,
            by="Agent",
            granted_mounts=self._gateway.grants.sandbox_mounts,
            contained=bool(runner.sandbox.get("image") or runner.sandbox.get("runtime")),
            workspace=runner.workspace,
        )

    @staticmethod
    def _is_writable(session: SandboxSession) -> bool:
        return session.policy.shows_workspace and session.policy.workspace_access == "read_write"

    async def _folder(self, session: SandboxSession) -> str:
        """The folder to start in, made. A fence that shows no workspace has none but `/tmp`."""
        if not session.policy.shows_workspace:
            return "/tmp"
        folder = folder_of(self._runner, self._state.spec.agent)
        if not self._is_writable(session):
            return self._runner.workspace_dir or WORKSPACE
        folders = [folder, *([HOME] if self._runner.resume else [])]
        if folders != [WORKSPACE]:
            made = await session.exec(["mkdir", "-p", "--", *folders], cwd=WORKSPACE)
            if made.exit_code:
                raise RunnerFailed(f"its folder {folder} cannot be made: {clean(made.stderr.decode(errors='replace'))}")
        return folder

    def _facts(self, name: str, system: str, folder: str, resumes: bool) -> TurnFacts:
        state, created = self._state, self._state.created
        media = [part for message in self._talk.new for part in message.parts if isinstance(part, Media)]
        people = {"user": state.identity.user, "by": state.identity.by, "via": state.identity.via}
        return TurnFacts(
            run_id=state.run_id,
            attempt=max(1, state.attempt),
            session=name,
            system_prompt=system,
            task=created.task if created is not None else "",
            model=self._runner.model,
            folder=folder,
            spawned_by=f"run:{created.parent}" if created is not None and created.parent else "",
            attachments=[
                {key: value for key in ("media_type", "name", "url", "blob") if (value := getattr(each, key))}
                for each in media
            ],
            provenance={key: value for key, value in people.items() if value},
            resume=resumes,
        )

    def _start_line(self, name: str, system: str, prompt: str) -> bytes:
        request = self._request
        return encoded(
            {
                "type": "start",
                "run_id": self._state.run_id,
                "session_id": name,
                "resume": bool(self._talk.last.turn),
                "system": system,
                "prompt": prompt,
                "messages": told_messages(request.messages),
                "results": [self._told(each) for each in self._talk.results],
                "tools": [
                    {"name": tool.name, "description": tool.description, "schema": tool.schema}
                    for tool in request.tools
                ],
            }
        )

    @staticmethod
    def _told(each: CallOutcome) -> dict[str, Any]:
        if not each.asked:
            return told_result(each.result, each.id)
        return {"type": "answer", "id": each.id, "text": None if each.result.error else each.result.text}

    def _go_on(self, program: RunningProgram) -> None:
        """Tell a program that waits what became of its calls, and what was said meanwhile."""
        lines = [encoded(self._told(each)) for each in self._talk.results]
        lines += [
            encoded({"type": "input", "text": message.text}) for message in self._talk.new if message.role == "user"
        ]
        program.turn = ""
        program.write(b"".join(lines), last=False)

    # --- the turn ----------------------------------------------------------------------------------------------------

    async def _done(self, program: RunningProgram, turn: Turn) -> ModelResponse:
        """Hear the program out, and make the answer of what it said. Nothing of it is left when this raises."""
        program.hear = turn.note_line
        try:
            how = await self._heard(program, turn)
            waits = bool(turn.calls or (turn.question and self._may_ask)) and self._speaks and turn.error is None
            if waits:
                program.hear = nobody
            else:
                await self._settle(program, turn, how)
                await self._look_for_question(program, turn)
                await program.close()
            await self._gateway.fences.changed(program.session.policy, program.owner)
            if program.dropped:
                turn.notes[f"a line of more than {LONGEST_LINE // MIB} MiB was dropped"] = None
            opaque, name = self._mark(turn.session or program.name)
            program.reports = program.reports or bool(turn.used.steps)
            response = self._answered(turn, opaque, program.reports)
        except ModelError as error:
            await program.close()
            error.usage = turn.used.usage()
            raise
        except BaseException as error:
            await program.close()
            if isinstance(error, asyncio.CancelledError):
                mark_cut(error, turn.used.usage())
            raise
        if waits:
            program.turn, program.name = name, turn.session or program.name
            self._gateway.keep(self._asking, program)
        return response

    async def _heard(self, program: RunningProgram, turn: Turn) -> EndOfTurn:
        """Read until the turn is over. Raises `RunnerTimedOut`."""
        runner = self._runner
        hear = self._hear_line if runner.protocol == "jsonl" else self._hear_text
        bound = program.session.policy.limits.seconds_of(runner.timeout)
        try:
            async with asyncio.timeout(bound):
                while not turn.is_over:
                    try:
                        async with asyncio.timeout(runner.idle):
                            more = await hear(program, turn)
                    except TimeoutError:
                        return "idle"
                    if not more:
                        return "closed"
        except TimeoutError:
            said = _reason(program, turn)
            raise RunnerTimedOut(f"the turn took more than {bound:g} seconds, and was ended{said}") from None
        return "said"

    async def _hear_text(self, program: RunningProgram, turn: Turn) -> bool:
        piece = await program.text()
        if piece is None:
            return False
        turn.say(piece)
        return True

    async def _hear_line(self, program: RunningProgram, turn: Turn) -> bool:
        line = await program.line()
        if line is None:
            return False
        try:
            found = parsed(line)
        except msgspec.ValidationError as error:
            raise RunnerFailed(
                f"a line of its program has two readings: {error}", hint="say each name once in an object"
            ) from None
        if found is not None:
            try:
                meaning = self._adapter.read(found)
            except Exception as error:  # an adapter of a package that breaks its word
                log.exception("the adapter %s cannot read a line of its program", self._adapter.name)
                reason = f"the adapter {self._adapter.name!r} cannot read a line of its program"
                raise RunnerFailed(
                    f"{reason}: {type(error).__name__}", hint="report it to the author of the package"
                ) from None
            for said in meaning:
                turn.take(said)
        elif line.strip():
            turn.note_line(f"{line.decode('utf-8', 'replace')}\n")
        return True

    async def _settle(self, program: RunningProgram, turn: Turn, how: EndOfTurn) -> None:
        """Have the program end, and see whether it failed. Raises a `ModelError`."""
        if turn.error is not None:
            outcome = classify_execution_outcome(1, turn.error.message, turn.error.outcome)
            raise _FAILURES[outcome](f"{self._runner.command[0]} failed: {turn.error.message}")
        program.write(b"", last=self._runner.protocol != "terminal")
        done = None if how == "idle" else await program.ended(self._gateway.grace)
        if how == "idle":
            turn.notes[f"the session ended: the program was silent for {self._runner.idle:g} seconds"] = None
        elif done is None:
            turn.notes["the program did not end by itself after its turn, and was ended"] = None
        elif how == "closed" and (done.exit_code or done.ended_by):
            raise RunnerFailed(
                f"{self._runner.command[0]} {_why(done)}{_reason(program, turn)}", hint=self._hint(program, done)
            )

    def _hint(self, program: RunningProgram, done: Finished) -> str | None:
        """Says what a program that failed may not have found: itself, or a file of the machine that it is given."""
        if done.exit_code == 127:
            return f"the program has to be where the fence sees it: in {INSIDE}"
        seen = (*SEEN, *(mount.target for mount in program.session.policy.mounts))
        given = [word for word in self._runner.command[1:] if _FILE.fullmatch(word) and not word.startswith(seen)]
        if not given or done.ended_by:
            return None
        return f"if {given[0]} is a file of the machine, show it by runner.sandbox.mounts: the program sees {INSIDE}"

    async def _look_for_question(self, program: RunningProgram, turn: Turn) -> None:
        """Take the question that a program left in a file."""
        if turn.question is not None or turn.calls or not self._may_ask or not self._is_writable(program.session):
            return
        path = f"{folder_of(self._runner, self._state.spec.agent)}/{QUESTION_FILE}"
        try:
            text = clean((await program.session.read(path, LONGEST_LOG)).decode("utf-8", "replace")).strip()
        except SandboxPathRefused:
            return
        await program.session.exec(["rm", "-f", "--", path])
        if text:
            turn.question = SaidQuestion("", text)

    @property
    def _is_silent(self) -> bool:
        """Whether the execution policy of the run says that nobody talks with its program."""
        policy = self._owner.caller.execution
        return policy is not None and policy.interactive is False

    @property
    def _may_ask(self) -> bool:
        return (
            self._runner.interactive
            and not self._is_silent
            and any(tool.name == ASK_USER for tool in self._request.tools)
        )

    # --- the answer --------------------------------------------------------------------------------------------------

    @staticmethod
    def _mark(session: str) -> tuple[str, str]:
        """Makes the mark that the answer carries for the next turn, and the name of this one."""
        name = chance.token_hex(8)
        return mark(WIRE, msgspec.json.encode(TurnMark(session, name)).decode()), name

    def _answered(self, turn: Turn, opaque: str, reports: bool) -> ModelResponse:
        said = turn.whole if turn.whole is not None else turn.answer.text
        if self._runner.protocol == "terminal":
            said = self._without_echo(stripped(said))
        said = clean(said)[-LONGEST_ANSWER:].strip("\n")
        if turn.whole is None and turn.answer.cut:
            turn.notes["only the end of what the program said is kept"] = None
        calls = [ToolCall("", each.name, each.arguments, mark(WIRE, f"call:{each.id}")) for each in turn.calls]
        if turn.question is not None and self._may_ask:
            calls = [self._asked(turn.question)]
        elif turn.question is not None:
            said = f"{said}\n{turn.question.text}".strip("\n")
        if not calls and not said.strip():
            said = NOTHING_SAID
        parts = (Reasoning(turn.log.text.rstrip("\n"), opaque=opaque), *([Text(said)] if said else ()), *calls)
        # A program that says what it used says so in its own time: at the latest with its last word.
        used = self._usage(turn, said) if turn.used.steps or not (reports or calls) else Usage(cost_usd=0.0)
        return self._response(Message("assistant", parts), used, tuple(turn.notes))

    def _response(self, message: Message, usage: Usage, notes: tuple[str, ...]) -> ModelResponse:
        return ModelResponse(
            message,
            usage,
            "tool_calls" if message.calls else "end",
            self._runner.model or self._runner.type,
            self._runner.provider,
            endpoint=REFERENCE,
            notes=notes,
        )

    def _without_echo(self, text: str) -> str:
        """Removes the echo: a terminal shows what was typed into it."""
        typed = as_text(self._request.messages if not self._talk.last.turn else self._talk.new)
        return text.removeprefix(typed).lstrip("\n") if typed else text

    def _asked(self, question: SaidQuestion) -> ToolCall:
        choices = list(dict.fromkeys(each.strip()[:500] for each in question.choices if each.strip()))[:MOST_CHOICES]
        arguments: dict[str, Any] = {"question": question.text[:LONGEST_QUESTION]}
        if len(choices) > 1:
            arguments["choices"] = choices
        if question.default and (len(choices) < 2 or question.default.strip() in choices):
            arguments["default"] = question.default
        if self._runner.idle is not None:
            arguments["timeout_seconds"] = max(1, round(self._runner.idle))
        return ToolCall("", ASK_USER, msgspec.json.encode(arguments).decode(), mark(WIRE, f"question:{question.id}"))

    def _usage(self, turn: Turn, said: str) -> Usage:
        """Returns the usage that the program told; else an estimate, at the price that the agent declares."""
        cost = self._runner.turn_cost_usd
        if not turn.used.steps:
            return Usage(estimate_request(self._request), estimate_text(said), cost_usd=cost, source="estimated")
        used = turn.used.usage()
        return msgspec.structs.replace(used, cost_usd=cost) if used.cost_usd is None and cost is not None else used


def _why(done: Finished) -> str:
    if done.ended_by == "memory":
        return "was ended because it used more memory than it may"
    if done.ended_by == "workspace":
        return f"was ended: {WORKSPACE_FULL}"
    return f"ended with the code {done.exit_code}"


def _reason(program: RunningProgram, turn: Turn) -> str:
    """The end of what it said on standard error, or else of what it printed."""
    said = stripped(clean(program.errors.text.strip() or turn.answer.text.strip()))[-LONGEST_REASON:]
    return f":\n{said}" if said else ""
