"""Network notes: lines on refused requests for the result of a call, whose program often says no more than `403`.

The pipeline sets `call_network` around each call. Fences write into it: each request that their broker refused, and the
rules that took the network away. A line holds the method, the host, the port and the reason; never a path or a header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from foliot.common.hosts import shown_host
from foliot.sandbox.egress.rules import EgressRecord

MOST_LINES: Final = 5
_LONGEST_HOST: Final = 100
# Ends of connections that programs bring about themselves, or that say nothing of a rule.
_USUAL: Final = frozenset({"", "closed", "connection_lost", "timeout", "nothing_asked"})
_ADDRESS: Final = "tools may not connect to such an address; the operator can allow it with the setting outbound_allow"
_WORDS: Final[Mapping[str, str]] = {
    "host": "no rule allows this host; sandbox.network lists what may be reached",
    "port": "no rule allows this port of the host; sandbox.network lists them (443 when none is named)",
    "method": "no rule allows this method here; sandbox.network lists what may be done",
    "rule": "a rule with deny refuses this",
    "malformed": "the request has no single reading",
    "host_mismatch": "the header Host names another host",
    "unresolved": "the name cannot be resolved",
    "unreachable": "the host does not answer",
    "certificate": "the certificate of the host is not trusted",
    "tls": "TLS with the host failed",
    "tls_refused": "TLS was refused; the program has to trust the certificates at SSL_CERT_FILE",
    "sni": "TLS asks for another host than the tunnel",
    "sni_hidden": "TLS hides which host it asks for",
    "not_tls": "only HTTP and TLS are carried",
    "secret_unavailable": "a secret of this request cannot be had now; see whether it exists with `foliot get secrets`",
    "secret_unusable": "the value of the secret cannot stand in a header",
    "placeholder_in_url": "the placeholder of a secret is in the URL; send it in a header",
    "placeholder_in_name": "the placeholder of a secret is in the name of a header",
    "placeholder_elsewhere": "the secret is not meant for this host; sandbox.secrets lists its hosts",
    "placeholder_in_clear": "the secret is not sent without TLS; use https",
    "unrecorded": "requests cannot be recorded now, so none is let through",
    "requests": "there were too many requests",
    "connections": "too many connections are open",
    "bytes": "too many bytes were moved",
}


class NetworkNotes:
    """The notes of one call on its network. They are bounded, whatever the code inside tries."""

    __slots__ = ("_more", "_narrowing", "_offline", "_refused")

    def __init__(self) -> None:
        self._refused: dict[str, int] = {}
        self._more = 0
        self._offline: tuple[str, ...] = ()
        self._narrowing: tuple[str, ...] = ()

    def note(self, record: EgressRecord) -> None:
        """Add what became of a request, unless it went well."""
        if record.verdict == "allowed" or record.reason in _USUAL:
            return
        line = self._line(record)
        if line in self._refused or len(self._refused) < MOST_LINES:
            self._refused[line] = self._refused.get(line, 0) + 1
        else:
            self._more += 1

    def narrowed(self, offline: Iterable[str], narrowing: Iterable[str]) -> None:
        """The rules that leave the call no network, and those that leave only some hosts."""
        self._offline, self._narrowing = tuple(offline), tuple(narrowing)

    def text(self, *, failed: bool) -> str:
        """The lines for the result, blank when there is nothing to say. Only what failed wonders about no network."""
        if not self._refused and not self._offline:  # of almost all calls there is nothing to say
            return ""
        lines = [f"[network] {line}{f' ({count} times)' if count > 1 else ''}" for line, count in self._refused.items()]
        if self._more:
            lines.append(f"[network] and {self._more} more")
        if failed and self._offline:
            lines.append(f"[network] this call had no network: {', '.join(self._offline[:MOST_LINES])}")
        return "\n".join(lines)

    def _line(self, record: EgressRecord) -> str:
        place = f"{shown_host(record.host)[:_LONGEST_HOST]}:{record.port}" if record.host else "an unnamed host"
        what = f"{record.method} {place}" if record.method else place
        reason = record.reason
        why = _WORDS.get(reason, _ADDRESS if reason.startswith("address") else "the broker did not let it through")
        if reason == "policy":
            why = f"{', '.join(self._narrowing[:MOST_LINES]) or 'a policy'} does not allow this"
        return f"{'refused' if record.verdict == 'denied' else 'failed'} {what}: {why} ({reason})"
