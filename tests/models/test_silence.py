"""A provider that goes silent without a word: the call ends in time, and can be left at any time."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from foliot.kernel.messages import Message, ModelRequest, Text
from foliot.models.base import ModelTimeout
from foliot.models.config import GatewayConfig, Timeouts
from foliot.models.openai_chat import OpenAIChatGateway
from foliot.testing.services.proxy import Proxy

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
            await asyncio.wait_for(gateway.respond(ASK, on_delta=hears), 30)
        await gateway.close()
        patient = OpenAIChatGateway(GatewayConfig("openai", proxy.url))
        asking = asyncio.ensure_future(patient.respond(ASK, on_delta=hears))
        await proxy.swallowed()
        asking.cancel()
        await asyncio.wait({asking}, timeout=30)
        assert asking.cancelled()
        await patient.close()
