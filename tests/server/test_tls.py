"""TLS for real: who is spoken to, who may speak, and what is said to those who may not."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from starlette.applications import Starlette

from foliot import Client
from foliot.errors import Unavailable, UsageError
from foliot.server.http.serve import HttpServer, listen_of
from foliot.settings.settings import load_settings
from foliot.store.base import Filter

HOUR = datetime.timedelta(hours=1)


class Authority:
    """Signs certificates into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = self._write("ca", self._certificate(self._name, self._key, ca=True), self._key)[0]

    def sign(self, name: str, *, client: bool, age: datetime.timedelta = HOUR) -> tuple[Path, Path]:
        """A certificate and its key. One that is older than two hours is over."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, self._certificate(subject, key, client=client, age=age), key)

    def _certificate(
        self, subject: x509.Name, key: Any, *, ca: bool = False, client: bool = False, age: datetime.timedelta = HOUR
    ) -> x509.Certificate:
        begin = datetime.datetime.now(datetime.UTC) - age
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + 2 * HOUR)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            # Python 3.13 asks for both, and for what the key of an authority may do.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if ca:
            may = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
            may |= dict.fromkeys(("digital_signature", "encipher_only", "decipher_only"), False)
            usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **may)
            builder = builder.add_extension(usage, critical=True)
        else:
            use = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
            names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
            builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate, key: Any) -> tuple[Path, Path]:
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return paths


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours", "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs", "theirs")


@pytest.fixture
async def url(app: Starlette, ours: Authority, tmp_path: Path) -> AsyncIterator[str]:
    """A server that speaks only to those who have a certificate of ours."""
    cert, key = ours.sign("server", client=False)
    given = {"listen": "127.0.0.1:0", "tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(ours.file)}
    listen = listen_of(load_settings({"home": str(tmp_path), **given}, {}))
    async with HttpServer(app, listen, grace=5) as server:
        yield f"https://localhost:{server.url.rpartition(':')[2]}"


async def test_who_shows_a_certificate_is_spoken_to(url: str, ours: Authority) -> None:
    cert, key = ours.sign("caller", client=True)

    async with Client(url, ca=ours.file, cert=cert, cert_key=key) as client:
        assert (await client.resources.list(Filter("Agent"))).items == []


async def test_who_shows_none_is_not_spoken_to_and_told_what_may_be_missing(url: str, ours: Authority) -> None:
    async with Client(url, ca=ours.file) as client:
        with pytest.raises(Unavailable) as refused:
            await client.resources.list(Filter("Agent"))
    assert refused.value.hint is not None
    assert "server_cert" in refused.value.hint


async def test_a_certificate_of_somebody_else_or_that_is_over_or_for_servers_is_none(
    url: str, ours: Authority, theirs: Authority
) -> None:
    for cert, key in (
        theirs.sign("stranger", client=True),
        ours.sign("late", client=True, age=3 * HOUR),
        ours.sign("another-server", client=False),
    ):
        assert not await asyncio.to_thread(_answers, url, ours.file, cert, key), cert.name
    cert, key = ours.sign("caller", client=True)
    assert await asyncio.to_thread(_answers, url, ours.file, cert, key)


async def test_who_does_not_speak_tls_hears_nothing_and_harms_nobody(url: str, ours: Authority) -> None:
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        heard = await reader.read()
    writer.close()

    assert not heard.startswith(b"HTTP")
    cert, key = ours.sign("caller", client=True)
    assert await asyncio.to_thread(_answers, url, ours.file, cert, key)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"tls_cert": "x"}, "tls_key is missing"),
        ({"tls_key": "x"}, "tls_cert is missing"),
        ({"tls_client_ca": "x"}, "needs TLS"),
    ],
)
def test_half_of_tls_is_refused(tmp_path: Path, given: dict[str, str], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        listen_of(load_settings({"home": str(tmp_path), **given}, {}))


async def test_an_authority_that_is_none_is_said_in_words(app: Starlette, ours: Authority, tmp_path: Path) -> None:
    cert, key = ours.sign("server", client=False)
    (tmp_path / "ca.pem").write_text("nothing")
    given = {"tls_cert": str(cert), "tls_key": str(key), "tls_client_ca": str(tmp_path / "ca.pem")}
    listen = listen_of(load_settings({"home": str(tmp_path), "listen": "127.0.0.1:0", **given}, {}))

    with pytest.raises(UsageError, match="certificate"):
        await HttpServer(app, listen).__aenter__()


def _answers(url: str, ca: Path, cert: Path, key: Path) -> bool:
    """Whether a request with this certificate is answered."""
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(cert, key)
    try:
        with (
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return line.recv(100).startswith(b"HTTP/1.1 200 ")
    except (ssl.SSLError, ConnectionError):
        return False
