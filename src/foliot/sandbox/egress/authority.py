"""The certificate authority of one session. Only its fence trusts it; its keys are in memory and nowhere else."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import tempfile
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from foliot.common.hosts import is_address

_DAYS: Final = 7
_MOST_HOSTS: Final = 256


class SessionAuthority:
    """Makes certificates for the hosts whose TLS the broker opens. One key for all of them: they are all the broker."""

    def __init__(self) -> None:
        # Clocks inside and outside are the same; an hour is for hosts that are being set.
        self._from = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        self._until = self._from + datetime.timedelta(days=_DAYS)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Foliot sandbox session")])
        self._contexts: dict[str, ssl.SSLContext] = {}
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def certificate(self) -> bytes:
        """The certificate that the fence trusts, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """The server's side of TLS for a host. A client that asks for another name is sent away."""
        kept = self._contexts.get(host)
        if kept is None:
            if len(self._contexts) >= _MOST_HOSTS:
                self._contexts.clear()
            kept = self._contexts[host] = self._made(host)
        return kept

    def _made(self, host: str) -> ssl.SSLContext:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Foliot sandbox")])
        subject = x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)
        leaf_key = self._leaf_key.public_key()
        certificate = (
            self._builder(name, leaf_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([subject]), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(leaf_key), critical=False)
            .add_extension(self._issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, certificate.public_bytes(serialization.Encoding.PEM) + key)

        def checked(_: ssl.SSLObject, asked: str | None, __: ssl.SSLContext) -> int | None:
            wrong = asked is not None and asked.lower().rstrip(".") != host
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if wrong else None

        context.sni_callback = checked  # pyright: ignore[reportAttributeAccessIssue]
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
        )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key. The module takes files only, so the file is one that has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        os.write(descriptor, pem)
        os.lseek(descriptor, 0, os.SEEK_SET)
        context.load_cert_chain(f"/dev/fd/{descriptor}")
    finally:
        os.close(descriptor)


def trusted(path: str | None) -> str:
    """The certificates that the system trusts, or those of a file, as PEM."""
    if path is not None:
        with open(path, encoding="utf-8") as file:
            return file.read()
    found = ssl.get_default_verify_paths().cafile
    if found:
        with open(found, encoding="utf-8", errors="replace") as file:
            return file.read()
    context = ssl.create_default_context()
    return "".join(ssl.DER_cert_to_PEM_cert(each) for each in context.get_ca_certs(binary_form=True))
