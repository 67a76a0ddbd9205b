"""The description of the API without a server: for documentation, clients and tests."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from foliot.server.app import ABOUT, include_routers


def described() -> dict[str, Any]:
    """OpenAPI 3.1, the same as `/openapi.json`."""
    app = FastAPI(**ABOUT)
    include_routers(app)
    return app.openapi()
