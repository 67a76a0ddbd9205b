"""For clients of tests that declare one part at a time, or only the part that they are about: all of it is taken."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import httpx2 as httpx

from foliot.resources.kinds import KINDS

_DECLARES: Final = re.compile(rf"/v1/(apply|({'|'.join(kind.plural for kind in KINDS.values())})(/[^/]+)?)")
# Acts on a task are no declaration, and grants are no resource of this path.
_OTHERS: Final = re.compile(r"/v1/(tasks/.+|tool-approvals/grants)")


async def take_missing(request: httpx.Request) -> None:
    path = request.url.path
    declares = _DECLARES.fullmatch(path) and request.method in ("POST", "PUT", "PATCH")
    if declares and not (request.method == "POST" and _OTHERS.fullmatch(path)):
        request.url = request.url.copy_merge_params({"allowMissing": "true"})


TAKES_MISSING: Final[dict[str, list[Callable[[httpx.Request], Awaitable[None]]]]] = {"request": [take_missing]}
