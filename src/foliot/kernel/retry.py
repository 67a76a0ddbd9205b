"""Whether a run that failed is tried again, and when. Pure: the same failure of the same run gives the same answer."""

from __future__ import annotations

from typing import Final

from foliot.kernel.events import RunFailed, Terminal
from foliot.kernel.plan import Retry

# Failures that another attempt would only repeat: the run used up what it may use, broke its contract, was refused by
# a rule, or asks its provider for something wrong.
FINAL_CODES: Final = frozenset(
    {
        "budget_exceeded",
        "contract_violation",
        "denied",
        "refused",
        "unknown_effect",
        "invalid_input",
        "not_found",
    }
)
FINAL_REASONS: Final = frozenset({"auth", "request", "not_found", "model_refusal", "context_overflow"})
_MAX_EXPONENT = 20


def is_retryable(terminal: Terminal, rule: Retry) -> bool:
    """Whether a failure of this kind may be tried again at all."""
    if not isinstance(terminal, RunFailed):
        return False
    text = f"{terminal.code} {terminal.reason} {terminal.message}".lower()
    if any(part in text for part in rule.non_retryable):
        return False
    return terminal.code not in FINAL_CODES and terminal.reason not in FINAL_REASONS


def delay(rule: Retry, key: str, attempt: int) -> float:
    """Seconds before the attempt after `attempt`: doubling, bounded, and spread by a chance that depends on `key`."""
    base = min(rule.backoff * 2.0 ** min(attempt - 1, _MAX_EXPONENT), rule.max_backoff)
    if base <= 0:
        return 0.0
    share = _fnv(f"{key.lower()}|{attempt}") % 1_000_000 / 1_000_000
    match rule.jitter:
        case "full":
            base *= share
        case "equal":
            base = base / 2 + base / 2 * share
        case "none":
            pass
    return max(base, 0.001)


def _fnv(text: str) -> int:
    """FNV-1a, 64 bits: the same spread in any language that knows the key."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number
