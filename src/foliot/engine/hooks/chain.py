"""One act through the hooks of a point, one after the other, whatever they do.

Each sees what the ones before have changed, in an object of its own: what it does to that object changes nothing. A
hook that raises, is late, or returns what means nothing has failed, and its `on_failure` says what follows. One that
does not stop when its time is over is left to itself: nothing here waits for it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import msgspec

from foliot.common import threads
from foliot.engine.hooks.base import MAY_BLOCK, MAY_CHANGE, Hook, HookAct, HookAnswer, HookBlock, HookChange
from foliot.kernel.arguments import parse_object
from foliot.kernel.run.events import HookDecided, HookPoint

log = logging.getLogger(__name__)

# Bytes that a hook may put in the place of a prompt, of arguments or of a text.
LARGEST: Final = 1024 * 1024
LONGEST_MODEL: Final = 256
LONGEST_MESSAGE: Final = 2_000
BLOCKED: Final = "a hook refused it"


class HookFailed(Exception):
    """A hook raised, was late, or returned what means nothing."""


@dataclass(slots=True)
class Decision:
    """The act as the hooks left it, and what becomes of it. `changed` holds the fields that one of them replaced."""

    act: HookAct
    hooks: list[str] = field(default_factory=list[str])
    changed: dict[str, Any] = field(default_factory=dict[str, Any])
    refused: str | None = None
    ended: str | None = None
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def event(self, name: str) -> HookDecided:
        """Returns the fact to record; `name` is that of the act."""
        changed = dict(self.changed)
        if "arguments" in changed:
            changed["arguments"] = msgspec.json.encode(changed["arguments"]).decode()
        then = "end" if self.ended is not None else "refuse" if self.refused is not None else "do"
        message = self.ended or self.refused or ""
        if then != "do":
            changed.clear()
        return HookDecided(
            self.act.point, name, tuple(self.hooks), **changed, then=then, message=message, failed=self.failed
        )


class HookChain:
    """The hooks of one run by point, in their order. It never changes: another set of hooks is another chain."""

    def __init__(self, hooks: Iterable[Hook], *, mask: Callable[[str], str] = str) -> None:
        """`mask` takes secrets out of the texts of hooks that failed or refused."""
        self.hooks = tuple(sorted(hooks, key=lambda each: (each.order, each.name)))
        self._mask = mask
        self._at: dict[HookPoint, tuple[Hook, ...]] = {}
        for each in self.hooks:
            for point in each.points:
                self._at[point] = (*self._at.get(point, ()), each)

    def has(self, point: HookPoint) -> bool:
        return point in self._at

    def names(self, point: HookPoint) -> tuple[str, ...]:
        """The names of the hooks of a point, in their order."""
        return tuple(each.name for each in self._at.get(point, ()))

    async def decide(self, act: HookAct) -> Decision:
        """Ask every hook of the act's point, up to the first that refuses it. Never raises, but when cancelled."""
        made = Decision(act)
        for each in self._at.get(act.point, ()):
            try:
                answer = await asked(each, made.act)
                changed = checked(answer, made.act)
            except HookFailed as error:
                if self._fail(each, made, str(error)):
                    break
                continue
            if isinstance(answer, HookBlock):
                made.hooks.append(each.name)
                made.refused = self._mask(answer.message.strip()[:LONGEST_MESSAGE]) or BLOCKED
                break
            if changed:
                made.hooks.append(each.name)
                made.changed.update(changed)
                made.act = replace(made.act, **changed)
        return made

    def _fail(self, failed: Hook, made: Decision, why: str) -> bool:
        """Take note of a failure. Returns whether nobody else is asked."""
        told = self._mask(why)[:LONGEST_MESSAGE].encode("utf-8", "replace").decode()
        act = made.act
        log.warning("hook %s failed at %s of run %s: %s", failed.name, act.point, act.run_id, told)
        made.failed[failed.name] = told
        if failed.on_failure == "ignore":
            return False
        made.hooks.append(failed.name)
        if failed.on_failure == "abort":
            made.ended = f"the hook {failed.name!r} failed at {act.point}: {told}"
        else:
            made.refused = f"the hook {failed.name!r} failed, and without it this is not done"
        return True


# --- asking one hook -------------------------------------------------------------------------------------------------

_left: set[asyncio.Task[Any]] = set()


async def asked(hook: Hook, act: HookAct) -> HookAnswer:
    """The answer of one hook within its time. Raises `HookFailed`."""
    given = replace(act, arguments=copy.deepcopy(act.arguments)) if act.arguments else act
    asking = asyncio.ensure_future(_answer(hook, given))
    try:
        done, _ = await asyncio.wait({asking}, timeout=hook.timeout)
    except asyncio.CancelledError:
        _leave(asking)
        raise
    if not done:
        _leave(asking)
        raise HookFailed(f"it did not answer within {hook.timeout:g} s")
    if asking.cancelled():
        raise HookFailed("it was cancelled")
    return asking.result()


def _leave(asking: asyncio.Task[Any]) -> None:
    """Tell a hook to stop without waiting for it; what it still says is heard by nobody."""
    asking.cancel()
    _left.add(asking)
    asking.add_done_callback(_forget)


def _forget(asking: asyncio.Task[Any]) -> None:
    _left.discard(asking)
    if not asking.cancelled():
        asking.exception()  # looked at, or the loop would report it as forgotten


async def _answer(hook: Hook, act: HookAct) -> HookAnswer:
    try:
        function = hook.at(act.point)
        if inspect.iscoroutinefunction(function):
            return await function(act)
        job = threads.begin(function, act)
        try:
            found = await job.future
        except asyncio.CancelledError:
            job.tell_to_end()
            raise
        return await found if inspect.isawaitable(found) else found
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except HookFailed:
        raise
    except BaseException as error:  # a stranger's code may raise anything, SystemExit too
        raise HookFailed(_named(error)) from error


def _named(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


# --- what an answer may say ------------------------------------------------------------------------------------------


def checked(answer: Any, act: HookAct) -> dict[str, Any]:
    """The changes that an answer asks for, each of them possible. Raises `HookFailed`."""
    if answer is None:
        return {}
    if isinstance(answer, HookBlock):
        if act.point not in MAY_BLOCK:
            raise HookFailed(f"nothing can be refused at {act.point}")
        if not isinstance(cast("object", answer.message), str):
            raise HookFailed("its message is not a text")
        return {}
    if not isinstance(answer, HookChange):
        raise HookFailed(f"it returned {type(answer).__name__}, and not None, act.change(…) or act.block(…)")
    found: dict[str, Any] = {}
    for name, value in answer.fields.items():
        if name not in MAY_CHANGE.get(act.point, ()):
            raise HookFailed(f"it cannot change {name!r} at {act.point}")
        found[name] = _possible(name, value, act)
    return {name: value for name, value in found.items() if value != getattr(act, name)}


def _possible(name: str, value: Any, act: HookAct) -> Any:
    match name:
        case "tools":
            return _fewer(value, act.tools)
        case "arguments":
            return _arguments(value)
        case "model":
            if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_MODEL or not value.isprintable():
                raise HookFailed("it names no model")
            return value
        case _:
            if not isinstance(value, str) or not _is_storable(value):
                raise HookFailed(f"its {name} is not a text of up to {LARGEST:,} bytes")
            return value


def _fewer(value: Any, offered: tuple[str, ...]) -> tuple[str, ...]:
    """The tools to offer, in the order in which they are: a hook takes tools away, and brings none."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise HookFailed("its tools are not a list of names")
    wanted = list(cast("Iterable[Any]", value))
    if more := [each for each in wanted if each not in offered]:
        raise HookFailed(f"it offers tools that the run does not have: {', '.join(map(str, more[:5]))[:200]}")
    return tuple(name for name in offered if name in wanted)


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise HookFailed("its arguments are not an object")
    try:
        text = msgspec.json.encode(dict(cast("Mapping[Any, Any]", value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise HookFailed(f"its arguments cannot be written as JSON: {error}") from None
    arguments = parse_object(text.decode())[0] if len(text) <= LARGEST else None
    if arguments is None:
        raise HookFailed(f"its arguments are not a JSON object of up to {LARGEST:,} bytes")
    return arguments


def _is_storable(text: str) -> bool:
    try:
        return len(text.encode()) <= LARGEST
    except UnicodeEncodeError:
        return False
