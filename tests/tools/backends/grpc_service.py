"""A real gRPC server for the tests, and certificates for it made on the fly."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Handler = Callable[[bytes, Any], Awaitable[bytes]]


@dataclass
class Service:
    """What runs on `port`. `metadata` are those of the calls, `deadlines` the seconds that each was given."""

    port: int
    server: Any
    metadata: list[dict[str, str]] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    async def crash(self) -> None:
        await self.server.stop(grace=None)


@asynccontextmanager
async def serving(handler: Handler, *, tls: tuple[bytes, bytes] | None = None, port: int = 0) -> AsyncIterator[Service]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    service = Service(0, server)

    async def execute(request: bytes, context: Any) -> bytes:
        service.metadata.append({str(key): str(value) for key, value in context.invocation_metadata()})
        service.deadlines.append(context.time_remaining())
        return await handler(request, context)

    methods = {"Execute": grpc.unary_unary_rpc_method_handler(execute)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("orloj.tool.v1.ToolService", methods),))
    if tls is None:
        service.port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        service.port = server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([tls]))
    await server.start()
    try:
        yield service
    finally:
        await server.stop(grace=None)


def certificate(name: str = "localhost") -> tuple[bytes, bytes, bytes]:
    """A test CA, and a key and a certificate that it signed for `name` (and for 127.0.0.1 when that is the name)."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def begun(subject: str, issuer: str, public: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    ca = (
        begun("Test CA", "Test CA", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        named = x509.DNSName(name)
    leaf = (
        begun(name, "Test CA", key.public_key())
        .add_extension(x509.SubjectAlternativeName([named]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return ca.public_bytes(pem), private, leaf.public_bytes(pem)
