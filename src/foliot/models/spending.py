"""Usage of attempts that give no answer: tokens and money of retries and fallbacks, of cut and of cancelled streams.

A provider bills what it has read and written, whatever becomes of the answer. Whoever asks for one answer opens an
account around it (`count`); the router books each failed attempt to it, with its price, and asks before the next one
whether there is room. So nothing that was used is lost, whether the answer comes late, never, or to nobody.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeAlias

from foliot.kernel.budget import Spent
from foliot.kernel.messages import Usage
from foliot.models.base import ModelError

HasRoom: TypeAlias = Callable[[Usage], Awaitable[bool]]
"""Given what one attempt has used for nothing: is there room for another one?"""


class Account:
    """The usage for one answer besides the answer itself. `checks` are all asked before another attempt."""

    __slots__ = ("_sum", "checks")

    def __init__(self) -> None:
        self._sum: Spent | None = None
        self.checks: list[HasRoom] = []

    @property
    def usage(self) -> Usage:
        return _NOTHING if self._sum is None else self._sum.usage()

    def add(self, usage: Usage) -> None:
        if usage.total_tokens or usage.cost_usd:
            self._sum = self._sum or Spent()
            self._sum.add(usage)

    async def book(self, error: ModelError) -> None:
        """Count what the failed attempt used, once; `spent_out` says afterwards whether it was the last."""
        usage = error.usage
        if not usage.total_tokens and not usage.cost_usd:
            return
        self.add(usage)
        for check in self.checks:
            if not await check(usage):
                error.spent_out = True


_NOTHING = Usage()
_current: ContextVar[Account | None] = ContextVar("foliot_model_account", default=None)


def count() -> Account:
    """Open the account of the answer that this task asks for, and those that it starts."""
    account = Account()
    _current.set(account)
    return account


def account() -> Account | None:
    return _current.get()


def mark_cut(cut: CancelledError, usage: Usage) -> None:
    """Have a cancellation carry what was used up to it, for whoever passes it on."""
    cut.usage = usage  # pyright: ignore[reportAttributeAccessIssue]  # an exception takes what it is given


def cut_usage(cut: CancelledError) -> Usage:
    return getattr(cut, "usage", _NOTHING)
