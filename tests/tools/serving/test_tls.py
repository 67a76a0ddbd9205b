"""Tools over a NATS server whose certificate is of a private authority: they use the same settings as the transport."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.errors import Unavailable
from tests.bus.tls_server import tls_server
from tests.tools.serving.bus import until

pytestmark = pytest.mark.services

SERVED = """\
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: shout}
spec: {type: function, function: "served_functions:shout", effect: idempotent}
"""
FUNCTION = '''\
def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()
'''
CALLING = """\
apiVersion: foliot.dev/v1
kind: Tool
metadata: {name: shout}
spec:
  type: queue
  effect: idempotent
  input_schema: {type: object, properties: {text: {type: string}}, required: [text]}
  runtime: {timeout: 30s}
---
apiVersion: foliot.dev/v1
kind: Agent
metadata: {name: crier}
spec: {model_ref: play, prompt: Shout., tools: [shout]}
---
apiVersion: foliot.dev/v1
kind: ModelEndpoint
metadata: {name: play}
spec:
  provider: scripted
  default_model: play
  script:
    - call: {shout: {text: tick}}
    - say: "It said {last_result}."
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with tls_server(tmp_path) as url:
        yield url


@asynccontextmanager
async def foliot(folder: Path, environ: Mapping[str, str], *words: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foliot.cli.main", *words),
        env={**os.environ, "NO_COLOR": "1", **environ},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_tool_is_served_and_called_in_a_run_under_a_private_authority(server: str, tmp_path: Path) -> None:
    (tmp_path / "served.yaml").write_text(SERVED)
    (tmp_path / "calling.yaml").write_text(CALLING)
    (tmp_path / "served_functions.py").write_text(
        'def shout(text: str) -> str:\n    """Says it."""\n    return text.upper()\n'
    )
    (tmp_path / "callers.toml").write_text("[anybody]\nanonymous = true\n")
    (tmp_path / "callers.toml").chmod(0o600)
    environ = {
        "FOLIOT_NATS": server,
        "FOLIOT_NATS_CA": "cert.pem",
        "FOLIOT_NATS_CERT": "cert.pem",
        "FOLIOT_NATS_CERT_KEY": "key.pem",
    }
    serve = ("tools", "serve", "-f", "served.yaml", "--create-stream", "--callers", "callers.toml")
    async with foliot(tmp_path, {**environ, "FOLIOT_HOME": str(tmp_path / "far")}, *serve) as serving:
        assert serving.stderr is not None
        async with asyncio.timeout(40):
            line = (await serving.stderr.readline()).decode()
        assert line.startswith("Serving 1 tool: shout."), line
        run = ("run", "calling.yaml", "now", "-q")
        async with foliot(tmp_path, {**environ, "FOLIOT_HOME": str(tmp_path / "here")}, *run) as running:
            said, told = await running.communicate()
    assert running.returncode == 0, told.decode()
    assert "It said TICK." in said.decode()


@pytest.mark.parametrize(
    ("token", "files", "setting"),
    [("sesame", (), "FOLIOT_NATS_CA"), ("melon", ("cert.pem", "cert.pem", "key.pem"), "FOLIOT_NATS_CREDENTIALS")],
)
async def test_a_refusal_names_the_setting_and_is_logged_once_for_each_kind(
    token: str, files: tuple[str, ...], setting: str, server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = dict(zip(("ca", "cert", "key"), (tmp_path / name for name in files), strict=False))
    link = NatsLink(NatsOptions(server.replace("sesame", token), **tls))
    link.start()
    await until(lambda: any(record.name.startswith("foliot") for record in caplog.records))
    with pytest.raises(Unavailable) as caught:
        await link.reached(timeout=1.5)
    await link.close()
    assert token not in str(caught.value)
    assert setting in (caught.value.hint or "")
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("foliot")]
    assert len(set(logged)) == len(logged) > 0
