"""A NATS server of a test's own that wants TLS: its certificate is of a private authority, and clients need one too."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foliot.dev.nats import find_nats_server
from foliot.dev.service import free_port


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


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """Start it; cert.pem and key.pem in `folder` are for clients too. Gives the address, with a token."""
    cert, key = make_certificate(folder)
    port = free_port()
    (folder / "nats.conf").write_text(
        f'host: 127.0.0.1\nport: {port}\njetstream: {{store_dir: "{folder}"}}\nauthorization: {{token: "sesame"}}\n'
        f'tls: {{cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true}}\n'
    )
    process = subprocess.Popen(
        [str(find_nats_server()), "--config", str(folder / "nats.conf")], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert any("Server is ready" in line for line in process.stderr)
        yield f"tls://sesame@127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()
