"""Random bytes of the system, asked for many at a time: a call for each id costs more than all else about it."""

from __future__ import annotations

import os
from typing import Final

_EACH: Final = 8
_AT_ONCE: Final = 64
# Taken from the end, which threads can do at the same time without getting the same.
_pool: Final[list[bytes]] = []


def eight_bytes() -> bytes:
    """Returns eight bytes that nobody can guess, and that nobody else has."""
    try:
        return _pool.pop()
    except IndexError:
        more = os.urandom(_EACH * _AT_ONCE)
        _pool.extend(more[at : at + _EACH] for at in range(_EACH, len(more), _EACH))
        return more[:_EACH]


# A child would go on with the bytes of its parent, and make the same ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)
