"""The start of a server: it is ready sooner, and steady afterwards.

    begin()        # before anything of FastAPI is imported
    ...            # import, open, listen
    settle()       # ready

Both are for a process whose business is to serve: they concern all of it.
"""

from __future__ import annotations

import gc
from importlib.util import find_spec
from typing import Final

from pydantic import BaseModel

from foliot.errors import UsageError

NEEDED: Final = ("fastapi", "uvicorn", "httptools")


def begin() -> None:
    """Import FastAPI cheaply, and look for garbage later: whatever is made while starting stays.

    Raises `UsageError` where the packages of a server are not installed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(f"a server needs {missing[0]}, which is not installed", hint="pip install 'foliot[server]'")
    gc.disable()
    _import_fastapi()


def settle() -> None:
    """Collect garbage from now on, but never look through what was there before the first request.

    A look at everything that was imported takes tens of milliseconds, in which nobody is answered.
    """
    if not gc.isenabled():
        gc.enable()
        gc.freeze()


def _import_fastapi() -> None:
    """The models of an OpenAPI document cost a quarter of the import, and are needed when somebody asks for one."""
    config = BaseModel.model_config
    before = config.get("defer_build")
    config["defer_build"] = True  # inherited by every model that is declared meanwhile
    try:
        import fastapi  # pyright: ignore[reportUnusedImport]  # for its effect on the next import  # noqa: F401
    finally:
        if before is None:
            del config["defer_build"]
        else:
            config["defer_build"] = before
