"""The program of the suite as an MCP server: a script that knows nothing but JSON and its standard streams."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
LOCK = threading.Lock()


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode())


def write(line: bytes) -> None:
    with LOCK:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def text(value: Any, *, failed: bool = False) -> dict[str, Any]:
    words = value if isinstance(value, str) else json.dumps(value)
    return {"content": [{"type": "text", "text": words}], **({"isError": True} if failed else {})}


def act(number: int, arguments: dict[str, Any], key: str) -> None:
    match arguments.get("do"):
        case "twice":
            send({"id": number, "result": text("first")})
            send({"id": number, "result": text("second")})
            return
        case "wrong_id":
            send({"id": number + 100_000, "result": text("theirs")})
            return
    with LOCK, (FOLDER / "seen.jsonl").open("a") as log:
        log.write(json.dumps({"arguments": arguments, "key": key}) + "\n")
    match arguments.get("do"):
        case "key":
            send({"id": number, "result": text(key)})
        case "fail":
            send({"id": number, "result": text(arguments.get("message", "no"), failed=True)})
        case "large":
            send({"id": number, "result": text("x" * arguments["size"])})
        case "bad_utf8":
            head = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % number
            write(head + b"\xff\xfe\xc3\x28 not text" + b'"}]}}')
        case "hang":
            return
        case "late":
            threading.Thread(target=late, args=(number,), daemon=True).start()
        case _:
            send({"id": number, "result": text(arguments.get("value"))})


def late(number: int) -> None:
    for _ in range(6000):
        if (FOLDER / "go").exists():
            send({"id": number, "result": text("late")})
            return
        time.sleep(0.01)


def main() -> None:
    schema = {"type": "object"}
    for line in sys.stdin.buffer:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                info = {"name": "program", "version": "0"}
                result = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
                send({"id": number, "result": result})
            case "tools/list":
                tool = {"name": "program", "description": "does as it is told", "inputSchema": schema}
                send({"id": number, "result": {"tools": [tool]}})
            case "tools/call":
                meta = params.get("_meta") or {}
                act(number, params.get("arguments") or {}, meta.get("foliot.dev/idempotency-key", ""))
            case _ if number is not None:
                send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
