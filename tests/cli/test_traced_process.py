"""A process of the command line sends its traces to the collector that the settings name."""

from __future__ import annotations

import asyncio
import gzip
import os
import sys

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MANIFEST = """\
kind: ModelEndpoint
metadata: {name: brain}
spec: {provider: scripted, script: echo}
---
kind: Agent
metadata: {name: parrot}
spec: {model_ref: brain}
"""


async def test_foliot_run_sends_the_trace_of_its_run(home, tmp_path) -> None:
    received: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    manifest = tmp_path / "parrot.yaml"
    manifest.write_text(MANIFEST)
    try:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", "run", str(manifest), "hello"),
            env={
                **os.environ,
                "FOLIOT_HOME": str(home),
                "FOLIOT_OTEL_ENDPOINT": f"http://127.0.0.1:{runner.addresses[0][1]}",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(child.communicate(), 50)
        assert child.returncode == 0, err.decode()
        assert b"hello" in out
    finally:
        await runner.cleanup()
    (body,) = received
    message = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    spans = [span for batch in message.resource_spans for scope in batch.scope_spans for span in scope.spans]
    assert "invoke_agent parrot" in {span.name for span in spans}
    assert len({span.trace_id for span in spans}) == 1
