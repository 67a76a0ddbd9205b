"""A bare FastAPI endpoint that returns a dict which never changes: what `bench_http_tasks.py` holds a read against.

Its environment is made by `install.py`. It says its address on standard error, and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

DOCUMENT: dict[str, Any] = json.loads(sys.argv[1])
app = FastAPI()


@app.get("/v1/model-endpoints/{name}")
async def get_endpoint(name: str):  # a type of what is returned would have FastAPI check it
    return DOCUMENT


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app, http="httptools", loop="asyncio", ws="none", access_log=False, log_level="warning", server_header=False
    )
    await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    asyncio.run(main())
