"""The start of a server: it is ready sooner, and steady afterwards.

    begin()        # before anything else is imported
    ...            # import, open, listen
    settle()       # ready

Both are for a process whose business is to serve: they concern all of it.
"""

from __future__ import annotations

import gc
from importlib.util import find_spec
from typing import Final

from foliot.errors import UsageError
from foliot.version import install_command

# A full look about every million objects that are made and not yet given back.
OF_A_SERVER: Final = (10_000, 10, 10)
NEEDED: Final = ("starlette", "uvicorn", "httptools")


def begin() -> None:
    """Look for garbage later: whatever is made while starting stays.

    Raises `UsageError` where the packages of a server are not installed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"a server needs {missing[0]}, which is not installed", hint=install_command("server"))
    gc.disable()


def settle() -> None:
    """Collect garbage from now on, but never look through what was there before the first request.

    A look at everything that was imported takes tens of milliseconds, in which nobody is answered. What is looked
    through then is small, so it is done often: with the thresholds by which a command starts, all of it was looked
    through every ten thousand turns, and the garbage of so many stayed in memory.
    """
    if not gc.isenabled():
        gc.enable()
        gc.freeze()
        gc.set_threshold(*OF_A_SERVER)
