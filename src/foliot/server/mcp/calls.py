"""`tools/call`: a run of an agent, a task of a system, or one governed call, with progress while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from foliot.common.cancellation import stop_tasks
from foliot.engine.driver.runs import user_message
from foliot.errors import Conflict, FoliotError, NotFound
from foliot.kernel.messages import Media, Text, ToolResult
from foliot.resources.validators import validator_of
from foliot.runtime.background import BackgroundRuns
from foliot.runtime.runtime import Runtime
from foliot.server.audit import ActRecord
from foliot.server.mcp.questions import (
    RUN_META,
    QuestionPlace,
    answer,
    answerable,
    decode_place,
    failed_result,
    form_of,
    input_required,
    is_modern,
    takes_forms,
    waiting_result,
)
from foliot.server.mcp.tools import MESSAGE, Context, McpCaller, asker_of, find_target, output_schema
from foliot.server.runs.background import (
    CALLER_LABEL,
    REQUEST_LABEL,
    VIA_LABEL,
    ClientTurn,
    RunEngagement,
    StartedTurn,
    TaskEngagement,
    derived_id,
    engage,
    failure_of,
    recorded,
)
from foliot.server.runs.targets import WorkTarget
from foliot.server.streams.pieces import Asked, Called, Ended, Piece, Printed, Rested, Returned, Teller, Worked, Wrote
from foliot.tools.base import Parked

LEFT: Final = "the client cancelled its call"
_arguments: Final = validator_of(MESSAGE)
CallResult = types.CallToolResult | types.InputRequiredResult


class Calls:
    """The calls of the clients of one server."""

    def __init__(self, runtime: Runtime, drives: BackgroundRuns) -> None:
        self._runtime = runtime
        self._drives = drives
        self._leaving: set[asyncio.Task[None]] = set()
        # A server that stops is not a client that cancels: somebody else goes on with its runs.
        self.stopping = False

    async def call(self, ctx: Context, who: McpCaller, params: types.CallToolRequestParams) -> CallResult:
        """Do it. What goes wrong in it is a result; a tool that is not there, or not the caller's, an `MCPError`."""
        if not who.caller.may("operator", who.namespace):
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r} that you may call")
        progress = _Progress(ctx)
        try:
            target = await find_target(self._runtime, who, params.name)
            if target is None:
                return await self._govern(who, params, progress)
            return await self._engage(ctx, who, target, params, progress)
        except FoliotError as error:
            return failed_result(error)

    async def close(self) -> None:
        """Wait until what clients left has been told."""
        await asyncio.gather(*self._leaving)

    # --- governed tools ------------------------------------------------------------------------------------------

    async def _govern(self, who: McpCaller, params: types.CallToolRequestParams, progress: _Progress) -> CallResult:
        tools = self._runtime.inside.tools
        try:
            offered = await tools.find(params.name, who.namespace)
        except NotFound as missing:
            raise MCPError(INVALID_PARAMS, f"{missing.message}: {missing.hint}") from None
        if offered.source == "builtin":
            raise MCPError(INVALID_PARAMS, f"the tool {params.name!r} belongs to runs, and is not called from outside")
        printed: asyncio.Queue[str] = asyncio.Queue()
        call = asyncio.create_task(
            tools.call(params.name, params.arguments or {}, asker_of(who), on_output=printed.put_nowait)
        )
        try:
            await progress.until(call, printed)
            result = await call
        finally:
            await stop_tasks(call)
        if isinstance(result, Parked):
            return _not_approved(params.name, result)
        return tool_result(result)

    # --- agents and systems --------------------------------------------------------------------------------------

    async def _engage(
        self, ctx: Context, who: McpCaller, target: WorkTarget, params: types.CallToolRequestParams, progress: _Progress
    ) -> CallResult:
        arguments = params.arguments or {}
        if problems := _arguments.problems(arguments, whole="arguments"):
            raise MCPError(INVALID_PARAMS, f"the arguments of {params.name} cannot be used: {problems[0]}")
        if params.request_state:
            engagement = await self._again(who, target, params)
        else:
            engagement = await self._begin(who, target, arguments)
        while True:
            last = await self._hear(engagement, progress)
            if isinstance(last, Ended):
                return _result(last, target, engagement.id)
            asked = answerable(who, last) if takes_forms(ctx) else []
            if not asked:
                return waiting_result(last, engagement.id)
            if is_modern(ctx):
                return input_required(asked, await self._place(target, engagement.id, asked))
            if not ctx.session.can_send_request:
                return waiting_result(last, engagement.id)
            place = await self._place(target, engagement.id, asked)
            if not await self._ask(ctx, who, asked):
                return waiting_result(last, engagement.id)
            engagement = await self._follow(who, target, place)

    async def _begin(self, who: McpCaller, target: WorkTarget, arguments: dict[str, Any]) -> StartedTurn:
        message, key = str(arguments["message"]), str(arguments.get("idempotency_key") or "")
        id = self._runtime.inside.new_run_id()
        digest = derived_id(target.kind, target.name, message)
        if key:
            id = f"i-{derived_id(who.namespace, who.caller.principal, target.name, key)}"
        kind = str(target.document["kind"])
        act = ActRecord(self._runtime, who.caller, "started", kind, who.namespace, target.name, run_id=id)
        turn = ClientTurn(
            target,
            (user_message(message),),
            id,
            structured=target.output_schema is not None,
            by=who.caller.name,
            identity=who.caller.acting_for_self("mcp"),
            labels={VIA_LABEL: "mcp", CALLER_LABEL: who.caller.name, REQUEST_LABEL: digest},
            act=act,
        )
        if key and target.kind == "agent":
            await self._check_same(id, digest)
        engagement = await engage(self._runtime, self._drives, turn)
        act.tell()
        return engagement

    async def _check_same(self, id: str, digest: str) -> None:
        with contextlib.suppress(NotFound):
            info = await self._runtime.inside.runs.journal.get(id)
            if info.labels.get(REQUEST_LABEL) != digest:
                raise Conflict("this idempotency key was used for another message", hint="choose another")

    async def _hear(self, engagement: StartedTurn, progress: _Progress) -> Ended | Rested:
        """Report pieces until the last one. A client that leaves cancels the work."""
        try:
            async with aclosing(cast("AsyncGenerator[Piece]", engagement.pieces())) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Ended | Rested):
                        return piece
                    await progress.tell(piece)
        except asyncio.CancelledError:
            if not self.stopping:
                self._leave(engagement)
            raise
        raise FoliotError("the run came to no end")

    def _leave(self, engagement: StartedTurn) -> None:
        async def cancel() -> None:
            with contextlib.suppress(FoliotError):
                await engagement.cancel(LEFT)

        task = asyncio.create_task(cancel())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- people --------------------------------------------------------------------------------------------------

    async def _ask(self, ctx: Context, who: McpCaller, asked: list[Asked]) -> bool:
        """Have the client show its user a form for each; whether anything was said."""
        heard = False
        for each in asked:
            form = form_of(each)
            said = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_id)
            heard = await answer(self._runtime, who, each, said) or heard
        return heard

    async def _again(self, who: McpCaller, target: WorkTarget, params: types.CallToolRequestParams) -> StartedTurn:
        """Go on where an earlier call returned forms, with what the user said. Raises `NotFound`, `Conflict`."""
        place = decode_place(params.request_state or "")
        asked = await self._open(who, target, place)
        for id, said in (params.input_responses or {}).items():
            each = asked.get(id)
            if each is None:
                raise Conflict(f"nothing is asked under {id!r} any more", hint="begin the call anew")
            if not isinstance(said, types.ElicitResult):
                raise Conflict(f"the answer to {id!r} is not that of a form")
            await answer(self._runtime, who, each, said)
        return await self._follow(who, target, place)

    async def _open(self, who: McpCaller, target: WorkTarget, place: QuestionPlace) -> dict[str, Asked]:
        """Returns the questions that a call waits for, if it is the caller's own call of this target."""
        missing = NotFound(f"there is no call {place.id!r} of yours that waits")
        if target.kind == "system":
            labels = (await self._runtime.inside.tasking.tasks.get(who.namespace, place.id)).labels
        else:
            info = await self._runtime.inside.runs.journal.get(place.id)
            labels = info.labels if (info.namespace, info.agent) == (who.namespace, target.name) else {}
        if (labels.get(VIA_LABEL), labels.get(CALLER_LABEL)) != ("mcp", who.caller.name):
            raise missing
        if target.kind == "system":
            async for piece in TaskEngagement(self._runtime, who.namespace, place.id).pieces():
                if isinstance(piece, Rested):
                    return {each.id: each for each in piece.asked}
            return {}
        teller = Teller(place.id)
        recorded(teller, await self._runtime.inside.runs.facts(place.id))
        return {each.id: each for each in teller.asked.values()}

    async def _follow(self, who: McpCaller, target: WorkTarget, place: QuestionPlace) -> StartedTurn:
        by = who.caller.name
        if target.kind == "system":
            return TaskEngagement(self._runtime, who.namespace, place.id, by=by, answered=frozenset(place.asked))
        return await RunEngagement.again(
            self._runtime,
            self._drives,
            place.id,
            structured=target.output_schema is not None,
            by=by,
            after=place.after,
        )

    async def _place(self, target: WorkTarget, id: str, asked: list[Asked]) -> QuestionPlace:
        ids = tuple(each.id for each in asked)
        if target.kind == "system":
            return QuestionPlace(id, asked=ids)
        _, state = await self._runtime.inside.runs.load(id)
        return QuestionPlace(id, state.seq, ids)


class _Progress:
    """Progress notifications, for a client that wants them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._count = 0

    async def say(self, text: str) -> None:
        self._count += 1
        await self._ctx.session.report_progress(self._count, None, text)

    async def tell(self, piece: Piece) -> None:
        match piece:
            case Wrote(text=text) | Printed(text=text):
                await self.say(text)
            case Called(name=name, arguments=arguments):
                await self.say(f"[{name} is called with {arguments}]")
            case Returned(name=name, error=error):
                await self.say(f"[{name} failed: {error}]" if error else f"[{name} has answered]")
            case Worked(agent=agent, phase=phase):
                await self.say(f"[{agent}: {phase}]")
            case _:
                pass

    async def until(self, work: asyncio.Task[Any], printed: asyncio.Queue[str]) -> None:
        """Pass on what is printed until the work is done."""
        while not work.done() or not printed.empty():
            piece = asyncio.create_task(printed.get())
            await asyncio.wait({work, piece}, return_when=asyncio.FIRST_COMPLETED)
            if piece.done():
                await self.say(piece.result())
            else:
                await stop_tasks(piece)


def tool_result(result: ToolResult) -> types.CallToolResult:
    """The result of a governed call as MCP has it."""
    content: list[types.ContentBlock] = [_block(part) for part in result.content]
    return types.CallToolResult(content=content, is_error=result.error is not None)


def _block(part: Text | Media) -> types.ContentBlock:
    if isinstance(part, Text):
        return types.TextContent(text=part.text)
    if part.data is not None and part.media_type.startswith("image/"):
        return types.ImageContent(data=part.data, mime_type=part.media_type)
    if part.data is not None and part.media_type.startswith("audio/"):
        return types.AudioContent(data=part.data, mime_type=part.media_type)
    return types.TextContent(text=part.url or f"[{part.name or part.media_type}]")


def _result(ended: Ended, target: WorkTarget, where: str) -> types.CallToolResult:
    error = failure_of(ended)
    if error is not None:
        return failed_result(error, where)
    structured = ended.value if output_schema(target) is not None else None
    return types.CallToolResult(
        content=[types.TextContent(text=ended.output)], structured_content=structured, _meta={RUN_META: where}
    )


def _not_approved(name: str, parked: Parked) -> types.CallToolResult:
    who = f" by {', '.join(parked.approvers)}" if parked.approvers else ""
    text = (
        f"The call of {name} needs an approval{who}, and was not made: {parked.reason}. "
        "An operator can grant such calls in advance; an agent that makes the call asks, and waits."
    )
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
