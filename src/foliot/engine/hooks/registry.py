"""Which hooks a run has, and when those that nobody uses any more are closed.

A run is asked by the hooks of the process (given to the runtime, or brought by plug-ins that the operator enabled), and
by those that its agent and the agents above it have: these are in its spec, so that a delegate has them wherever it is
driven. A hook that a spec names and this process has not counts as one that fails: its `on_failure` decides.

Hooks are exchanged without a stop. A driver takes the generation that is in force when it begins and keeps it until its
run ends or waits; hooks of an earlier generation are closed with the last driver that has it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from foliot.common.threads import on_thread
from foliot.engine.hooks.base import POINTS, Hook, HookAct, HookAnswer, distinct
from foliot.engine.hooks.chain import HookChain, HookFailed, asked
from foliot.engine.hooks.declared import HOOKS, DeclaredHook, HttpTarget
from foliot.engine.hooks.run_hooks import RunHooks
from foliot.kernel.run.events import HookPoint
from foliot.kernel.run.spec import RunSpec

log = logging.getLogger(__name__)

# How long one hook may take to let go of what it holds.
CLOSE_SECONDS: Final = 5.0


class _Declared(Hook):
    """A hook by its declaration: what is asked is another, the order and what a failure means are the agent's."""

    def __init__(self, declared: DeclaredHook, ask: Callable[[HookAct], Any], within: Iterable[HookPoint]) -> None:
        self.name, self.order = declared.name, declared.order
        self.timeout, self.on_failure = declared.timeout, declared.on_failure
        self._points = frozenset(within)
        self._ask = ask

    @property
    def points(self) -> frozenset[HookPoint]:
        return self._points

    def at(self, point: HookPoint) -> Callable[[HookAct], Any]:
        return self._ask


class _Generation:
    def __init__(self, number: int, hooks: tuple[Hook, ...]) -> None:
        self.number = number
        self.hooks = hooks
        self.everywhere = tuple(each for each in hooks if each.scope == "all")
        self.by_name = {each.name: each for each in hooks}
        self.chains: dict[bytes, HookChain] = {}
        self.users = 0


class HookRegistry:
    """The hooks of one process. `http` makes a hook that is asked over HTTP; `mask` takes secrets out of texts."""

    def __init__(
        self,
        given: Iterable[Hook] = (),
        *,
        mask: Callable[[str], str] = str,
        http: Callable[[HttpTarget], Callable[[HookAct], Any]] | None = None,
    ) -> None:
        self.given = distinct(given, "the runtime")
        self._mask = mask
        self._http = http
        self._agents: dict[str, dict[str, Hook]] = {}
        self._generations: dict[int, _Generation] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._current = self._begin(self.given)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks in force for runs that begin now, those that agents must name included."""
        return self._current.hooks

    def know(self, agent: str, hooks: Sequence[Hook]) -> None:
        """Know the objects of an Agent of Python, `namespace/name`."""
        if hooks or agent in self._agents:
            self._agents[agent] = {each.name: each for each in hooks}
            self._current.chains.clear()

    def exchange(self, brought: Iterable[Hook]) -> None:
        """From now on drivers begin with these hooks of plug-ins besides those of the runtime. Raises `UsageError`."""
        hooks = distinct((*self.given, *brought), "the runtime and its plug-ins")
        before = self._current
        self._current = self._begin(hooks)
        self._retire(before)

    def take(self, spec: RunSpec) -> RunHooks | None:
        """The hooks of a run that is driven from now on; None when it has none. `release` them at the end."""
        now = self._current
        declared: Sequence[Mapping[str, Any]] = spec.extra.get(HOOKS, ())
        if not declared and not now.everywhere:
            return None
        key = msgspec.json.encode(declared)
        chain = now.chains.get(key)
        if chain is None:
            own = [self._found(msgspec.convert(each, DeclaredHook), now) for each in declared]
            unique = {id(each): each for each in (*now.everywhere, *own)}
            chain = now.chains[key] = HookChain(unique.values(), mask=self._mask)
        now.users += 1
        return RunHooks(chain, now.number)

    async def release(self, hooks: RunHooks) -> None:
        generation = self._generations.get(hooks.generation)
        if generation is not None:
            generation.users -= 1
            if generation is not self._current:
                self._retire(generation)

    def lacks(self, spec: RunSpec) -> str:
        """Names a hook that a run of this spec must have and this process has not; blank when it has them all."""
        for each in spec.extra.get(HOOKS, ()):
            declared = msgspec.convert(each, DeclaredHook)
            if declared.on_failure != "ignore" and isinstance(self._found(declared, self._current), _Missing):
                return declared.name
        return ""

    def _found(self, declared: DeclaredHook, now: _Generation) -> Hook:
        if declared.agent:
            found = self._agents.get(declared.agent, {}).get(declared.name)
            return found or _Missing(declared, f"agent {declared.agent} of this process has no such hook")
        if declared.plugin:
            found = now.by_name.get(declared.plugin)
            if found is None:
                return _Missing(declared, f"no plug-in that is enabled here has a hook named {declared.plugin!r}")
            points = found.points & frozenset(declared.points) if declared.points else found.points
            return _Declared(declared, _by_point(found), points)
        if declared.http is None or self._http is None:
            return _Missing(declared, "this process asks no hooks over HTTP")
        return _Declared(declared, self._http(declared.http), declared.points)

    # --- generations ---------------------------------------------------------------------------------------------

    def _begin(self, hooks: tuple[Hook, ...]) -> _Generation:
        number = max(self._generations, default=0) + 1
        made = self._generations[number] = _Generation(number, hooks)
        return made

    def _retire(self, generation: _Generation) -> None:
        """Close the hooks that nobody has any more, if this was the last driver that had them."""
        if generation.users or generation is self._current:
            return
        self._generations.pop(generation.number, None)
        kept = {id(hook) for each in self._generations.values() for hook in each.hooks}
        for hook in generation.hooks:
            if id(hook) not in kept:
                closing = asyncio.get_running_loop().create_task(_close(hook))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every hook of the process, once nothing is driven any more."""
        hooks = {id(hook): hook for each in self._generations.values() for hook in each.hooks}
        self._generations.clear()
        self._current = self._begin(())
        await asyncio.gather(*self._closing, *(_close(each) for each in hooks.values()))


def _by_point(hook: Hook) -> Callable[[HookAct], Any]:
    """One function for all points of a hook."""

    async def ask(act: HookAct) -> HookAnswer:
        return await asked(hook, act)

    return ask


class _Missing(_Declared):
    """Stands for a hook that is not here."""

    def __init__(self, declared: DeclaredHook, why: str) -> None:
        super().__init__(declared, partial(_fail, why), declared.points or POINTS)


async def _fail(why: str, act: HookAct) -> HookAnswer:
    raise HookFailed(f"it is not here: {why}")


async def _close(hook: Hook) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            if inspect.iscoroutinefunction(hook.close):
                await hook.close()
            else:  # somebody's own, which may wait for what it lets go of
                let_go = await on_thread(hook.close)
                if inspect.isawaitable(let_go):
                    await let_go
    except Exception as error:
        log.warning("hook %s could not be closed: %r", hook.name, error)
