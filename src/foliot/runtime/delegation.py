"""Runs that other runs start: how deep, by whom, with how much, and how they end together.

A child is a run like any other, with a journal of its own that names its parent. It gets what its parent has left,
narrowed by its own limits; children of one step share it. It ends when its parent's run ends. When only the process
ends, it stays, and whoever goes on with the parent goes on with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.engine.code.conversation import PROGRAM, limits_of, program_spec
from foliot.engine.definition.freeze import CLIENT, DELEGATION, narrowed_by
from foliot.engine.definition.run_options import RunOptions, without_tools
from foliot.engine.definition.skills import prompt_of
from foliot.engine.driver.doubts import family
from foliot.engine.driver.driver import Driver
from foliot.engine.driver.runs import Runs, user_message
from foliot.engine.hooks.declared import with_hooks
from foliot.engine.runners.profile import RUNNER
from foliot.errors import Conflict, FoliotError, InactiveAgent, NotFound, UsageError
from foliot.kernel.run.budget import Limits, Spent, narrow, remaining
from foliot.kernel.run.events import RunCreated, RunSucceeded
from foliot.kernel.run.spec import RunSpec, digest
from foliot.kernel.run.state import Call, State
from foliot.kernel.traces import under_call
from foliot.resources.digest import definition_digest
from foliot.resources.problems import ManifestError
from foliot.runtime.assembly import Assembly
from foliot.store.base import NextChange
from foliot.store.journal.base import TERMINAL, RunHeld, Signal
from foliot.store.journal.cancelling import ends_with_parent
from foliot.tools import search
from foliot.tools.backends.agent import (
    RUNNING_CODE,
    SPAWNING,
    Delegated,
    Delegation,
    DelegationOrder,
    Program,
    child_id,
    child_ids,
)
from foliot.tools.base import ToolArgumentsInvalid, ToolDenied, ToolError, ToolUnsupported
from foliot.tools.builtin.names import names_of
from foliot.tools.pipeline.parts import spend
from foliot.tools.workspaces import FenceOwner, call_files

# --- children --------------------------------------------------------------------------------------------------------

# Runs that go on beside the run that started them.
#
# A child is driven by a task of this process, and ends when its parent's run ends, wherever that run is driven then.
# When only the process ends, children stay as they are: whoever goes on with the parent and waits for them goes on
# with them too. Nothing here is the truth about a child; that is its journal.

log = logging.getLogger(__name__)

# How many children of one run may be under way beside it.
MOST_BESIDE: Final = 10


class Child:
    """One run in the background. `state` is how it ended; `call_id` is the call that started it, if known here."""

    def __init__(self, run_id: str, parent: str, call_id: str = "") -> None:
        self.run_id = run_id
        self.parent = parent
        self.call_id = call_id
        self.state: State | None = None
        self.task: asyncio.Task[None] | None = None
        self.starting = False

    @property
    def open(self) -> bool:
        return self.starting or (self.task is not None and not self.task.done())


class Children:
    """The background runs of this process, by their parents. `next_change`: of the store."""

    def __init__(
        self, runs: Runs, *, clock: Callable[[], float], next_change: NextChange, most: int = MOST_BESIDE
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._next_change = next_change
        self._most = most
        self._of: dict[str, dict[str, Child]] = {}
        self._minders: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def starting(self, run_id: str, parent: str, call_id: str) -> Generator[None]:
        """Take the place of a child while it is being started. Raises `ToolDenied` when one more would be too many."""
        family = self._of.setdefault(parent, {})
        under_way = sum(child.open for child in family.values())
        if under_way >= self._most:
            raise ToolDenied(
                f"{under_way} agents are under way beside this run, and no more than {self._most} may be; "
                "wait for one of them",
                layer="delegation",
                rule="fan_out",
            )
        child = family.setdefault(run_id, Child(run_id, parent, call_id))
        child.starting = True
        try:
            yield
        finally:
            child.starting = False

    def keep(self, run_id: str, parent: str, drive: Callable[[], Coroutine[Any, Any, State]]) -> Child:
        """Drive a run in the background. One that is driven here already is left to the task that it has."""
        child = self._of.setdefault(parent, {}).setdefault(run_id, Child(run_id, parent))
        if child.task is None or child.task.done():
            child.task = asyncio.create_task(self._driven(child, drive))
            minder = self._minders.get(parent)
            if minder is None or minder.done():
                self._minders[parent] = asyncio.create_task(self._mind(parent))
        return child

    async def _driven(self, child: Child, drive: Callable[[], Coroutine[Any, Any, State]]) -> None:
        try:
            child.state = await drive()
        except FoliotError as error:
            # Whoever waits for it looks at its journal, and sees that it has not ended.
            log.warning("run %s, started by %s, cannot go on here: %s", child.run_id, child.parent, error)

    def unpaid(self, parent: State) -> Spent:
        """Returns what the children of a run have spent, or may still spend, that is charged to no account yet.

        Without those of calls that are under way: the step's share for each call is theirs.
        """
        total = Spent()
        for child in self._of.get(parent.run_id, {}).values():
            driver = self._runs.local(child.run_id)
            state = driver.state if driver is not None else child.state
            call = parent.call(child.call_id)
            if state is None or child.run_id in parent.paid or (call is not None and call.phase != "done"):
                continue
            limits, spent, over = state.spec.limits, state.spent, state.ended is not None
            total.input_tokens += spent.tokens if over or limits.max_tokens is None else limits.max_tokens
            total.cost_usd += spent.cost_usd if over or limits.max_cost_usd is None else limits.max_cost_usd
        return total

    async def wait(self, children: Sequence[Child], *, all: bool, seconds: float) -> None:
        """Waits until all of them (or any) have ended, or the time is over."""
        tasks = {child.task for child in children if child.task is not None}
        when = asyncio.ALL_COMPLETED if all else asyncio.FIRST_COMPLETED
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=when)

    async def close(self) -> None:
        """Let go of every child. Those whose parents have ended are ended; the others stay as they are."""
        for parent in list(self._of):
            if await self.has_ended(parent):
                self._end(parent)
        if self._endings:  # also those that a minder has begun: cut off, they would leave a child running
            await asyncio.wait(set(self._endings.values()))
        tasks = [child.task for family in self._of.values() for child in family.values() if child.task is not None]
        await _stopped([*list(self._minders.values()), *tasks])
        self._of.clear()
        self._minders.clear()

    # --- ending with the parent ----------------------------------------------------------------------------------

    async def _mind(self, parent: str) -> None:
        """Stay until the parent's run has ended, and end its children then.

        Also until it waits, when nothing is under way beside it: a run that waits costs nothing.
        """
        try:
            next_change = None  # the first look is before any mark, so another one follows it at once
            while not await self.has_ended(parent):
                under_way = any(child.open for child in self._of.get(parent, {}).values())
                if not under_way and self._runs.local(parent) is None:
                    self._of.pop(parent, None)
                    return
                with contextlib.suppress(FoliotError):  # a store that fails for a moment is asked again
                    if next_change is not None:
                        await next_change()
                    next_change = self._next_change()
            await asyncio.shield(self._end(parent))
        finally:
            self._minders.pop(parent, None)

    async def has_ended(self, parent: str) -> bool:
        """Whether a run has ended, for its children: one that nobody remembers has."""
        driver = self._runs.local(parent)
        if driver is not None and driver.state.ended is None:
            return False
        try:
            return (await self._runs.journal.get(parent)).phase in TERMINAL
        except NotFound:
            return True  # forgotten, so long over
        except FoliotError:
            return False

    def _end(self, parent: str) -> asyncio.Task[None]:
        """End the children of a run, once; whoever stops waiting for that does not stop it."""
        ending = self._endings.get(parent)
        if ending is None:
            ending = self._endings[parent] = asyncio.create_task(self._end_children(parent))
            ending.add_done_callback(lambda _: self._endings.pop(parent, None))
        return ending

    async def _end_children(self, parent: str) -> None:
        ending = [child for child in self._of.pop(parent, {}).values() if child.open]
        for child in ending:
            stop = ends_with_parent(child.run_id, self._clock())
            with contextlib.suppress(FoliotError):  # it has ended by itself
                await self._runs.journal.signal(stop)
                if (driver := self._runs.local(child.run_id)) is not None:
                    driver.deliver(stop)
        tasks = [child.task for child in ending if child.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=Waits(self._runs.lease_seconds).child)
            await _stopped(tasks)


async def _stopped(tasks: Iterable[asyncio.Task[None]]) -> None:
    waited = list(tasks)
    await stop_tasks(*waited)


# --- delegation ------------------------------------------------------------------------------------------------------

# How many levels of delegation there may be below a run, and how many runs in all, unless its agent declares it.
MAX_DEPTH: Final = 4
MAX_RUNS: Final = 500
# What holds for everything below a run, in the spec of each run there.
BOUNDS: Final = "delegation_bounds"
# The preset of a run, among the definitions that it is pinned to.
PRESET: Final = "DelegationPreset/"


class DelegationBounds(Struct, frozen=True):
    """How deep the runs below a root may go, counted from the root, and how many of them there may be."""

    deepest: int = MAX_DEPTH
    runs: int = MAX_RUNS


class Delegator:
    """`Agents` on the runs of this process. `next_change`: of the store."""

    def __init__(
        self,
        runs: Runs,
        assembly: Assembly,
        *,
        clock: Callable[[], float],
        next_change: NextChange,
    ) -> None:
        self._runs = runs
        self._assembly = assembly
        self._clock = clock
        self._next_change = next_change
        # One child of a root is started at a time: so they are counted, and no conversation is continued twice.
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._children = Children(runs, clock=clock, next_change=next_change)

    async def __call__(self, order: DelegationOrder) -> Delegated:
        """Runs the child and returns its result. Raises `ToolDenied`, `ToolUnsupported`, `ToolError`."""
        task = asyncio.create_task(self._run(order))
        try:
            state = await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._let_go(order, task)
            raise
        except ToolError:
            raise
        except FoliotError as error:
            raise ToolError(f"agent {order.agent!r} cannot be run: {error.message}", retryable=False) from error
        finally:
            await self._account(order)
        if order.program is not None:
            await self._bring_files_back(order, state)
        return _delegated(state)

    async def spawn(self, order: DelegationOrder) -> str:
        """Starts a child in the background; see `Agents`. Raises as a call."""
        try:
            driver = None
            if not await self._begun(order):
                with (
                    self._children.starting(order.run_id, order.parent, order.call_id),
                    contextlib.suppress(Conflict),  # another attempt of the same call was faster
                ):
                    driver = await self._start(order)
                    self._children.keep(order.run_id, order.parent, partial(self._drive, order.run_id, driver))
            phase = "running" if driver is not None else (await self._runs.journal.get(order.run_id)).phase
        except ToolError:
            raise
        except FoliotError as error:
            raise ToolError(f"agent {order.agent!r} cannot be run: {error.message}", retryable=False) from error
        if phase not in TERMINAL:
            self._children.keep(order.run_id, order.parent, partial(self._drive, order.run_id))
        return phase

    async def collect(self, parent: str, run_ids: Sequence[str], *, all: bool, seconds: float) -> dict[str, Delegated]:
        """Waits for children and returns their results; see `Agents`. Raises `ToolDenied`."""
        under_way = [run_id for run_id in run_ids if not await self._child_has_ended(run_id, parent)]
        waited = [self._children.keep(run_id, parent, partial(self._drive, run_id)) for run_id in under_way]
        if all or len(waited) == len(run_ids):
            await self._children.wait(waited, all=all, seconds=seconds)
        found: dict[str, Delegated] = {}
        for run_id in run_ids:
            info, state = await self._runs.load(run_id)
            if state.ended is not None:
                spend(run_id, state.spent.usage())
            found[run_id] = _delegated(state) if state.ended is not None else Delegated(run_id, info.phase)
        return found

    async def _child_has_ended(self, run_id: str, parent: str) -> bool:
        created = await self._began(run_id)
        if created is None or created.parent != parent:
            raise ToolDenied(f"the run {run_id!r} was not started by this one", layer="delegation", rule="parent")
        return (await self._runs.journal.get(run_id)).phase in TERMINAL

    async def taken_up(self, state: State) -> list[Signal]:
        """Go on with what a run that is taken up had beside it; what it has to be told first, if anything.

        A child that outlived its parent, because the process died in between, is told to end.
        """
        if SPAWNING & state.rules.keys():
            for run_id in _children_by(state, SPAWNING):
                with contextlib.suppress(FoliotError):  # whoever waits for it is told what is wrong
                    if (await self._runs.journal.get(run_id)).phase not in TERMINAL:
                        self._children.keep(run_id, state.run_id, partial(self._drive, run_id))
        parent = state.created.parent if state.created is not None else ""
        if not parent or not await self._children.has_ended(parent):
            return []
        return [ends_with_parent(state.run_id, self._clock())]

    async def close(self) -> None:
        """Let go of the children that run beside their parents; see `Children.close`."""
        await self._children.close()

    # --- starting ------------------------------------------------------------------------------------------------

    async def _run(self, order: DelegationOrder) -> State:
        if not await self._begun(order):
            with contextlib.suppress(Conflict):  # another attempt of the same call was faster: it is the same child
                return await self._drive(order.run_id, await self._start(order))
        return await self._drive(order.run_id)

    async def _begun(self, order: DelegationOrder) -> bool:
        """Whether the child is there. Raises `ToolError` when a run with its id is somebody else's."""
        facts = await self._runs.facts(order.run_id, limit=1)
        if not facts:
            return False
        created = facts[0][1]
        if not isinstance(created, RunCreated) or (created.parent, created.agent) != (order.parent, order.agent):
            raise ToolError(f"the run {order.run_id} is not a child of this call", retryable=False)
        return True

    async def _guard(self, order: DelegationOrder, root: str, bounds: DelegationBounds) -> None:
        """Raises `ToolDenied` if the call chain is too deep or cyclic, or the runs of its root are used up."""
        if order.depth > bounds.deepest:
            raise ToolDenied(
                f"depth limit: agents may delegate {bounds.deepest} deep, and {order.agent!r} would be one deeper",
                layer="delegation",
                rule="depth",
            )
        if order.program is not None:
            return  # it is the caller itself
        declared = self._delegation(order)
        if declared is None or not declared.cycles:
            self._check_circle(order, await self._ancestors(order, bounds))
        family_name = family(order.namespace, order.parent, order.caller.task, root).name
        if await self._runs.journal.delegated(family_name) >= bounds.runs:
            raise ToolDenied(
                f"budget exhausted: no more than {bounds.runs} runs may be started below one, on all levels together",
                layer="delegation",
                rule="budget",
            )

    def _check_circle(self, order: DelegationOrder, chain: Sequence[tuple[str, str, str]]) -> None:
        """Raises `ToolDenied` for an agent that stands above, or for a copy of one under the same preset."""
        named = order.namespace, order.agent
        if (*named, order.preset) in chain if order.own else named in [each[:2] for each in chain]:
            way = [f"{agent} ({preset})" if preset else agent for _, agent, preset in reversed(chain)]
            last = f"{order.agent} ({order.preset})" if order.own else order.agent
            raise ToolDenied(
                f"cycle: agents would call each other in a circle: {' -> '.join((*way, last))}",
                layer="delegation",
                rule="cycle",
            )

    async def _ancestors(self, order: DelegationOrder, bounds: DelegationBounds) -> list[tuple[str, str, str]]:
        """Returns the callers of this run and their presets, nearest first, by the journals.

        A model's text has no part in it.
        """
        chain: list[tuple[str, str, str]] = []
        run_id = order.parent
        while run_id and len(chain) <= bounds.deepest:
            if (created := await self._began(run_id)) is None:
                break
            chain.append((created.namespace, created.agent, _preset_of(created)))
            run_id = created.parent
        return chain

    async def _began(self, run_id: str) -> RunCreated | None:
        """How a run began, by its journal."""
        facts = await self._runs.facts(run_id, limit=1)
        created = facts[0][1] if facts else None
        return created if isinstance(created, RunCreated) else None

    async def _start(self, order: DelegationOrder) -> Driver:
        """Store the child, held by this process. Raises `Conflict` when it is there, `ToolError`."""
        parent = await self._began(order.parent) if order.parent else None
        root = (parent.root if parent is not None else "") or order.parent
        async with self._starting.setdefault(root, asyncio.Lock()):
            if order.session:
                order = await self._continued(order, parent)
            bounds = self._bounds(order)
            await self._guard(order, root, bounds)
            return await self._started(order, parent, root, bounds)

    async def _started(
        self, order: DelegationOrder, parent: RunCreated | None, root: str, bounds: DelegationBounds
    ) -> Driver:
        caller = order.caller
        workspace = None
        if order.program is not None:
            spec, definitions = await self._program(order, order.program), parent.definitions if parent else {}
            ancestors, driven = caller.ancestors, self._parent(order)
            workspace = driven.workspace if driven is not None else None
        else:
            spec, definitions = await self._own(order, parent) if order.own else await self._frozen(order)
            ancestors = (*caller.ancestors, caller.agent) if caller.agent else caller.ancestors
            if order.own and not order.after and (driven := self._parent(order)) is not None:
                workspace = driven.workspace  # a copy of the caller begins with its files
        spec = replace(spec, extra={**spec.extra, BOUNDS: msgspec.to_builtins(_narrower(bounds, spec, order.depth))})
        try:
            tools = await self._assembly.pipeline(spec)
        except (NotFound, UsageError) as error:
            raise ToolUnsupported(f"agent {order.agent!r} cannot be run: {error.message}", hint=error.hint) from None
        return await self._runs.start(
            spec,
            (user_message(order.input),),
            run_id=order.run_id,
            after=order.after,
            definitions=dict(definitions),
            parent=order.parent,
            depth=order.depth,
            trace=self._trace(order),
            identity=caller.identity,
            task=caller.task,
            system=caller.system,
            template=caller.template,
            root=root,
            ancestors=ancestors,
            past=parent.past_effects if parent is not None else (),
            workspace=workspace,
            tools=tools,
        )

    async def _frozen(self, order: DelegationOrder) -> tuple[RunSpec, Mapping[str, str]]:
        """The agent that is asked for, as it is defined now, with what its caller leaves to it."""
        where = f"{order.namespace}/{order.agent}"
        try:
            agent = self._assembly.known(order.namespace, order.agent) or await self._assembly.agent(where)
            # For whom the run above acts; whose skills they are is a matter of the namespace of the agent.
            spec = await self._assembly.with_skills_of(await self._assembly.freeze(agent), order.caller.user)
        except (NotFound, UsageError, ManifestError, InactiveAgent) as error:
            raise ToolUnsupported(f"agent {order.agent!r} cannot be run: {error.message}", hint=error.hint) from None
        spec, pins = await self._under_preset(order, _narrowed(spec, order))
        spec = with_hooks(spec, await self._spec_above(order))
        return narrowed_by(spec, order.caller.execution), {
            f"Agent/{agent.name}": definition_digest(agent.document),
            **pins,
        }

    async def _own(self, order: DelegationOrder, created: RunCreated | None) -> tuple[RunSpec, Mapping[str, str]]:
        """The caller as it is pinned, under a preset: it answers in its own words, and its client has no part in it."""
        parent = self._parent(order)
        if parent is None or PROGRAM in parent.spec.extra or RUNNER in parent.spec.extra:
            raise ToolUnsupported("a program has no copies that could do a task", hint="name an agent")
        brought = frozenset(parent.spec.extra.get(CLIENT, ()))
        spec = replace(
            parent.spec,
            tools=tuple(rule for rule in parent.spec.tools if rule.name not in brought),
            settings=replace(parent.spec.settings, tool_choice="auto"),
            contract=None,
            output_schema=None,
            tool_use_behavior="run_llm_again",
            time_notice="",  # a task whose time is over has failed: the notice is for people
            extra={name: value for name, value in parent.spec.extra.items() if name != CLIENT},
        )
        # What a hook has left out of the question, no copy has either.
        spec = without_tools(spec, [rule.name for rule in spec.tools if not parent.offers(rule.name)])
        spec, pins = await self._under_preset(order, spec)
        above = created.definitions if created is not None else {}
        return spec, {**{name: pin for name, pin in above.items() if not name.startswith(PRESET)}, **pins}

    async def _under_preset(self, order: DelegationOrder, spec: RunSpec) -> tuple[RunSpec, dict[str, str]]:
        """The spec of a child under the preset of its task, without the tools that any run above it has lost.

        The second value is what it is pinned to besides. Raises `ToolError`.
        """
        declared = self._delegation(order)
        preset = declared.preset(order.preset) if declared is not None and order.preset else None
        if order.preset and preset is None:
            raise ToolArgumentsInvalid(f'unknown preset: "{order.preset}"', field="preset")
        lost = list(order.caller.excluded_tools)
        if preset is not None and preset.tools is not None:
            kept = {name for each in preset.tools for name in names_of(each)} | {search.NAME}
            lost += [rule.name for rule in spec.tools if kept.isdisjoint(names_of(rule.name))]
        prompt = preset.prompt.strip() if preset is not None else ""
        # A blank one changes nothing; what the spec says of skills is written behind it again.
        system = "\n\n".join(filter(None, (prompt_of(spec), prompt))) if prompt else ""
        model = order.model or (preset.model if preset is not None else "")
        left = self._share(order)
        if declared is not None:
            allowed = preset.seconds if preset is not None and preset.seconds is not None else declared.seconds
            left = narrow(left, replace(left, max_seconds=allowed))
        spec = replace(spec, limits=narrow(left, spec.limits))
        adjusted = await self._assembly.adjusted(spec, RunOptions(tuple(lost), system, model))
        pins = {} if preset is None else {f"{PRESET}{preset.name}": digest(msgspec.json.encode(preset))}
        return adjusted, pins

    async def _continued(self, order: DelegationOrder, parent: RunCreated | None) -> DelegationOrder:
        """The order with the turn that it goes on after. Raises `ToolError` for what is no session of the caller's.

        It was started by a turn of the caller's own conversation, for the same person; what is not is not found.
        """
        first = await self._began(order.session)
        if (
            first is None
            or parent is None
            or (first.namespace, first.agent) != (order.namespace, order.agent)
            or first.identity.user != order.caller.user
            or not first.parent
            or first.after
            or not await self._is_of_conversation(first.parent, order.parent, parent)
        ):
            raise ToolArgumentsInvalid(
                f"session not found: there is no session {order.session[:80]!r} of {order.agent!r} to go on with",
                field="session_id",
            )
        last = await self._runs.journal.last_turn(order.session)
        if (await self._runs.journal.get(last)).phase not in TERMINAL:
            raise ToolError(f"the session {order.session!r} is at work", retryable=False)
        latest = await self._began(last)
        preset = order.preset or (_preset_of(latest) if latest is not None else "")
        return replace(order, after=last, preset=preset)

    async def _is_of_conversation(self, run_id: str, last: str, created: RunCreated | None) -> bool:
        """Whether a run is a turn of the conversation that ends with `last`, which began so."""
        while last != run_id and created is not None and created.after:
            last, created = created.after, await self._began(created.after)
        return last == run_id

    def _delegation(self, order: DelegationOrder) -> Delegation | None:
        """How the caller delegates, where its agent declares it."""
        parent = self._parent(order)
        given = parent.spec.extra.get(DELEGATION) if parent is not None else None
        return None if given is None else msgspec.convert(given, Delegation)

    def _bounds(self, order: DelegationOrder) -> DelegationBounds:
        """Returns what holds for all runs below the caller."""
        parent = self._parent(order)
        if parent is None:
            return DelegationBounds()
        if (given := parent.spec.extra.get(BOUNDS)) is not None:
            return msgspec.convert(given, DelegationBounds)
        declared = self._delegation(order) or Delegation()
        depth = order.caller.depth
        return DelegationBounds(depth + (declared.max_depth or MAX_DEPTH), declared.max_runs or MAX_RUNS)

    async def _spec_above(self, order: DelegationOrder) -> RunSpec | None:
        """The spec of whoever asks: what hooks it has, its delegates have too."""
        if (parent := self._parent(order)) is not None or not order.parent:
            return None if parent is None else parent.spec
        return (await self._runs.load(order.parent))[1].spec

    async def _program(self, order: DelegationOrder, program: Program) -> RunSpec:
        """The caller as it is pinned, with a program in the place of its model."""
        parent = self._parent(order)
        if parent is None:
            raise ToolUnsupported("a program belongs to a run that is driven here, and there is none")
        left = self._share(order)
        if left.max_tool_calls is not None:
            calls = max(0, left.max_tool_calls - await self._called_by_programs(parent))
            beside = sum(call.name == RUNNING_CODE and call.phase != "done" for call in parent.calls)
            left = replace(left, max_tool_calls=calls // max(1, beside))
        # What a hook has left out of the question is not called by a program that the answer holds, either.
        offered = [name for name in order.tools or () if parent.offers(name)]
        return program_spec(parent.spec, offered, program, left)

    async def _bring_files_back(self, order: DelegationOrder, program: State) -> None:
        """Have the call leave what its program changed in the files, which had begun with those of its agent."""
        files, left = call_files.get(), program.workspace
        begun = program.created.workspace if program.created is not None else None
        if files is None or files.run_id != order.parent or left is None or left == begun:
            return
        workspaces = self._assembly.backends.fences.workspaces
        assert workspaces is not None, "the program had files"
        owner = FenceOwner(RUNNING_CODE, order.caller, order.parent, order.call_id)
        await workspaces.take_over(owner, begun, left)

    async def _called_by_programs(self, parent: State) -> int:
        """How many calls the earlier programs of a run have made: they count as its own."""
        made = 0
        for run_id in _children_by(parent, (RUNNING_CODE,)):
            with contextlib.suppress(NotFound):  # not one of ours, or not begun yet
                made += (await self._runs.load(run_id))[1].spent.tool_calls
        return made

    def _trace(self, order: DelegationOrder) -> str:
        """A child belongs to the trace of its parent, below the call that asked for it."""
        parent = self._parent(order)
        context = parent.created.trace if parent is not None and parent.created is not None else ""
        return under_call(context, order.parent, order.call_id) if context else ""

    def _share(self, order: DelegationOrder) -> Limits:
        """Divides what the parent has left among the children that its step asks for.

        What children beside it have spent or may still spend is not left, whether or not anybody has waited for them.
        """
        parent = self._parent(order)
        if parent is None:
            return Limits(max_steps=order.max_steps)
        left = remaining(limits_of(parent.spec), parent.spent, now=self._clock(), deadline=parent.deadline)
        shares = max(1, sum(len(children_of(parent, call)) for call in parent.calls if call.phase != "done"))
        unpaid = self._children.unpaid(parent)
        steps, tokens, cost = left.max_steps, left.max_tokens, left.max_cost_usd
        if order.max_steps is not None:
            steps = order.max_steps if steps is None else min(steps, order.max_steps)
        return replace(
            left,
            max_steps=steps,
            max_tokens=None if tokens is None else max(0, tokens - unpaid.tokens) // shares,
            max_cost_usd=None if cost is None else max(0.0, cost - unpaid.cost_usd) / shares,
        )

    def _parent(self, order: DelegationOrder) -> State | None:
        driver = self._runs.local(order.parent)
        return driver.state if driver is not None else None

    # --- until it ends -------------------------------------------------------------------------------------------

    async def _drive(self, run_id: str, driver: Driver | None = None) -> State:
        """Stay with the child: through waits for people and timers, and while another process drives it.

        `driver` has it in hand already.
        """
        state = await self._runs.drive(driver) if driver is not None else None
        while state is None or state.ended is None:
            next_change = self._next_change()
            info, state = await self._runs.load(run_id)
            if state.ended is not None:
                break
            if info.phase == "waiting" and not await self._may_go_on(state):
                await next_change()
                continue
            try:
                driver = await self._runs.take(run_id, tools=await self._assembly.pipeline(state.spec))
                state = await self._runs.drive(driver)
            except RunHeld:
                await next_change()
            except Conflict:
                continue  # ended, or taken over, this moment: the journal tells which
        return state

    async def _may_go_on(self, state: State) -> bool:
        return await self._runs.may_go_on(state)

    async def _let_go(self, order: DelegationOrder, task: asyncio.Task[State]) -> None:
        """The call was stopped: the child ends with its parent's run, and waits for it when only the process ends."""
        if self._is_over(order):
            stop = ends_with_parent(order.run_id, self._clock())
            with contextlib.suppress(FoliotError):  # it was not there yet, or has ended by itself
                await self._runs.journal.signal(stop)
                if (driver := self._runs.local(order.run_id)) is not None:
                    driver.deliver(stop)
                await asyncio.wait({task}, timeout=Waits(self._runs.lease_seconds).child)
        await stop_tasks(task)

    def _is_over(self, order: DelegationOrder) -> bool:
        now = self._clock()
        if order.deadline is not None and now >= order.deadline:
            return True
        driver = self._runs.local(order.parent)
        if driver is None:
            return False
        deadline = driver.state.deadline
        return driver.is_ending or (deadline is not None and now >= deadline)

    async def _account(self, order: DelegationOrder) -> None:
        with contextlib.suppress(FoliotError):  # never started: nothing was spent
            _, state = await self._runs.load(order.run_id)
            spend(order.run_id, state.spent.usage())


def _narrowed(spec: RunSpec, order: DelegationOrder) -> RunSpec:
    """Only the tools that the order leaves to the child. Raises `ToolArgumentsInvalid` for one that it has not."""
    if order.tools is None:
        return spec
    kept = frozenset(order.tools)
    has = {rule.name for rule in spec.tools}
    if missing := sorted(kept - has):
        listed = ", ".join(sorted(has)) or "none"
        raise ToolArgumentsInvalid(
            f"agent {order.agent!r} has no tool {', '.join(missing)}; it has: {listed}", field="tools"
        )
    return replace(spec, tools=tuple(rule for rule in spec.tools if rule.name in kept or rule.name == search.NAME))


def _narrower(bounds: DelegationBounds, spec: RunSpec, depth: int) -> DelegationBounds:
    """The bounds below a child at this depth: its own declaration can only narrow what holds above it."""
    given = spec.extra.get(DELEGATION)
    declared = Delegation() if given is None else msgspec.convert(given, Delegation)
    deepest = bounds.deepest if declared.max_depth is None else min(bounds.deepest, depth + declared.max_depth)
    return DelegationBounds(deepest, min(bounds.runs, declared.max_runs or bounds.runs))


def _preset_of(created: RunCreated) -> str:
    return next((name.removeprefix(PRESET) for name in created.definitions if name.startswith(PRESET)), "")


def _children_by(state: State, tools: Collection[str]) -> list[str]:
    """The children that calls of these tools may have started, by what the run asked for."""
    calls = [call for message in state.transcript for call in message.calls if call.name in tools]
    return [child_id(state.spec.namespace, state.run_id, call.id) for call in calls]


def children_of(state: State, call: Call) -> list[str]:
    """The children that an open call stands for, by what it asks for; they need not have begun."""
    return child_ids(state.spec.namespace, state.run_id, call.name, call.id, call.arguments)


def _delegated(state: State) -> Delegated:
    ended, usage = state.ended, state.spent.usage()
    if isinstance(ended, RunSucceeded):
        return Delegated(state.run_id, "succeeded", ended.output, ended.value, usage)
    phase = "cancelled" if state.ending is not None and state.ending.cancelled is not None else "failed"
    reason = getattr(ended, "reason", "")
    told = getattr(ended, "message", "")
    return Delegated(state.run_id, phase, usage=usage, error=told, reason=reason, code=getattr(ended, "code", ""))
