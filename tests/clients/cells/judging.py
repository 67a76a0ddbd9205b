"""Runs the cells of one client and prints what came of each, as one line of JSON. Needs nothing but Python.

A cell is a function that has the client do one thing and raises when the answer is not the one that it has to be.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

BASE = os.environ.get("FOLIOT_BASE", "")
KEY = os.environ.get("FOLIOT_KEY", "")
WITHIN = 60.0


def same(found: object, wanted: object) -> None:
    """Raises `AssertionError` unless they are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def main(client: str, package: str, cells: dict[str, Callable[[], Any]]) -> None:
    """`cells` are named `api.feature`."""
    told: dict[str, str] = {}
    for name, cell in cells.items():
        try:
            done = cell()
            if inspect.isawaitable(done):
                asyncio.run(_in_time(done))
            told[name] = "right"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            told[name] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"client": client, "version": importlib.metadata.version(package), "cells": told}))
    sys.exit(0)


async def _in_time(done: Any) -> None:
    async with asyncio.timeout(WITHIN):
        await done
