"""A provider that goes silent without a word: the call ends in time, and can be left at any time."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Runtime
from foliot.bus.open import nats_options
from foliot.common.waits import Waits
from foliot.kernel.messages import Message, ModelRequest, Text
from foliot.models.base import ModelTimeout
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.gateways.connection import _new_socket
from foliot.models.gateways.openai import OpenAIChatGateway
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from simulators.proxy import Proxy

ASK = ModelRequest("m", (Message("user", (Text("hello"),)),))
# What the client library leaves to the garbage collector of a connection that was cut off is no concern of this test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_provider_that_goes_silent_is_a_time_out_and_can_be_left_at_any_time(stream: bool) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,  # which never looks at what comes
        Proxy(f"http://127.0.0.1:{server.getsockname()[1]}") as proxy,
    ):
        proxy.silence()
        hears: Any = (lambda _: None) if stream else None
        limits = Timeouts(connect=0.5, idle=0.5, total=0.5)
        gateway = OpenAIChatGateway(GatewayConfig("openai", proxy.url, timeouts=limits))
        with pytest.raises(ModelTimeout):
            await asyncio.wait_for(gateway.respond(ASK, on_delta=hears), 60)
        await gateway.close()
        patient = OpenAIChatGateway(GatewayConfig("openai", proxy.url))
        asking = asyncio.ensure_future(patient.respond(ASK, on_delta=hears))
        await proxy.swallowed()
        asking.cancel()
        await asyncio.wait({asking}, timeout=30)
        assert asking.cancelled()
        await patient.close()


async def test_bounds_follow_the_lease_that_is_configured(tmp_path: Path) -> None:
    settings = load_settings({"store": str(tmp_path / "foliot.db"), "lease": "12s", "nats": "nats://127.0.0.1:1"})
    endpoints = {
        "silent": ({}, 3.0),  # a quarter of the lease
        "patient": ({"timeouts": {"connect": "9s"}}, 9.0),
    }
    async with Runtime(settings=settings) as runtime:
        models = runtime.inside._assembly.models
        for name, (spec, connect) in endpoints.items():
            spec = {"provider": "openai", "default_model": "m", "base_url": "http://127.0.0.1:1", **spec}
            document, _ = validate_document({"kind": "ModelEndpoint", "metadata": {"name": name}, "spec": spec})
            assert document is not None
            await runtime.inside.resources.write([Put(document)])
            config = (await models._resolve(f"default/{name}")).gateway
            assert config.timeouts.connect == connect
            assert config.timeouts.idle == Timeouts().idle, "silence inside a stream is the endpoint's own"
            assert config.waits == Waits(lease=12)
        assert (await models._resolve("openai:m")).gateway.timeouts.connect == 3.0
        assert runtime.inside._assembly.backends.web.client._waits == Waits(lease=12)
        assert runtime.inside._assembly.backends._nats_options.waits == Waits(lease=12)  # type: ignore[union-attr]
    assert nats_options(settings, name="x").waits.ping == pytest.approx(12 / 9)


async def test_the_system_asks_a_silent_provider_by_the_lease() -> None:
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = _new_socket(Waits(lease=18), (server.family, socket.SOCK_STREAM, 0, "", server.getsockname()))
        with made:
            asked.append(made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            for option, seconds in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 2), ("TCP_USER_TIMEOUT", 4500)):
                if hasattr(socket, option):
                    assert made.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) == seconds
    assert asked == [1]
