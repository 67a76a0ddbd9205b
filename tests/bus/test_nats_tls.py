"""A NATS server that wants TLS with a certificate of the client, and a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from tests.bus.tls_server import tls_server
from tests.conformance.transports import SOON, gather, ticket

pytestmark = pytest.mark.services


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with tls_server(tmp_path) as url:
        yield url


async def test_tickets_go_over_tls_with_a_certificate_and_a_token(server: str, tmp_path: Path) -> None:
    options = NatsOptions(server, ca=tmp_path / "cert.pem", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    transport = await NatsTransport.open(NatsLink(options), patience=SOON)
    await transport.publish([ticket(1)])
    (got,) = await gather(transport, want=1, names=True)
    assert got.ticket == ticket(1)
    await got.done()
    await transport.close()


async def test_without_the_certificate_nobody_gets_in_and_nobody_hangs(server: str, tmp_path: Path) -> None:
    transport = await NatsTransport.open(NatsLink(NatsOptions(server, ca=tmp_path / "cert.pem")), patience=1.0)
    await transport.publish([ticket(1)])
    assert list(await transport.receive(want=1, timeout=0.1)) == []
    async with asyncio.timeout(SOON):
        await transport.close()
