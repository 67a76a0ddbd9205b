"""A NATS server that wants TLS with a certificate of the client, and a token."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.dev.nats import find_nats_server
from foliot.dev.service import free_port
from tests.conformance.transports import SOON, gather, ticket

pytestmark = pytest.mark.services


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """One that signs itself, for this machine: server, client and authority in one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foliot tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return cert_file, key_file


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    cert, key = make_certificate(tmp_path)
    port = free_port()
    (tmp_path / "nats.conf").write_text(
        f'host: 127.0.0.1\nport: {port}\njetstream: {{store_dir: "{tmp_path}"}}\nauthorization: {{token: "sesame"}}\n'
        f'tls: {{cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true}}\n'
    )
    process = subprocess.Popen(
        [str(find_nats_server()), "--config", str(tmp_path / "nats.conf")], stderr=subprocess.DEVNULL
    )
    yield f"tls://sesame@127.0.0.1:{port}"
    process.kill()
    process.wait(SOON)


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
