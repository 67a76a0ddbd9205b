"""Arguments of a call as people may see them: secrets masked, long texts cut.

What is shown can be edited and given back: `restored` puts what was hidden into its place again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, cast

from foliot.errors import InvalidInput
from foliot.kernel.arguments import DEEPEST
from foliot.tools.masking import MASK, Masker

LONGEST: Final = 20_000
"""Characters of one text that are shown; a longer one is cut, and says so."""
CUT: Final = re.compile(r"… \([0-9,]+ characters\)\Z")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# A word of a name that gives it away; and pairs that do so together. `max_tokens` and `key` hide nothing.
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "apikey", "authorization"}
    | {"credential", "credentials", "cookie", "bearer", "jwt", "cvv", "cvc", "otp", "pin"}
)
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("private", "key"), ("access", "key"), ("signing", "key")})


def shown(arguments: Mapping[str, Any], masker: Masker | None = None, *, longest: int = LONGEST) -> dict[str, Any]:
    """A copy of the arguments that can be stored and printed. `masker` knows secrets by value, wherever they stand."""
    seen = {name: _shown(value, name, 1, longest) for name, value in arguments.items()}
    return masker.mask_value(seen) if masker is not None else seen


def shows(seen: Any, original: Any) -> bool:
    """Whether `seen` is what `shown` makes of the original, whichever secrets were known at the time."""
    if isinstance(seen, str) and (MASK in seen or seen == "…"):
        if not isinstance(original, str):
            return seen in (MASK, "…")
        return re.fullmatch(".*".join(map(re.escape, seen.split(MASK))), original, re.DOTALL) is not None
    if isinstance(seen, str) and isinstance(original, str) and (cut := CUT.search(seen)):
        return seen == original or (len(original) > cut.start() and original.startswith(seen[: cut.start()]))
    parts, real = _object(seen), _object(original)
    if parts is not None and real is not None:
        return parts.keys() == real.keys() and all(shows(item, real[name]) for name, item in parts.items())
    rows, kept = _array(seen), _array(original)
    if rows is not None and kept is not None:
        return len(rows) == len(kept) and all(shows(*pair) for pair in zip(rows, kept, strict=True))
    return type(seen) is type(original) and bool(seen == original)


def restored(edited: dict[str, Any], seen: Mapping[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    """The edited arguments, with what was hidden in `seen` taken from the original where it was left as it was shown.

    Raises `InvalidInput` when a mask stands where nothing was masked: it would be sent as a value.
    """
    whole: dict[str, Any] = _restored(edited, dict(seen), dict(original))
    if place := _masked_at(whole, ()):
        raise InvalidInput(
            f"{'/'.join(place)} holds {MASK}, which only stands for a value that is hidden there",
            hint="give the value itself, or leave the masked one where it was",
        )
    return whole


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a value under this name is one that nobody should read over a shoulder."""
    words = [word.lower() for word in _WORD.findall(name)]
    return not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairwise(words))


def _shown(value: Any, name: str, depth: int, longest: int) -> Any:
    if value is not None and value != "" and not isinstance(value, bool) and looks_secret(name):
        return MASK
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… ({len(value):,} characters)"
    if depth >= DEEPEST and isinstance(value, dict | list):
        return "…"
    if isinstance(value, dict):
        return {key: _shown(item, key, depth + 1, longest) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_shown(item, "", depth + 1, longest) for item in cast("list[Any]", value)]
    return value


def _restored(edited: Any, seen: Any, original: Any) -> Any:
    parts, before, real = _object(edited), _object(seen), _object(original)
    if parts is not None and before is not None and real is not None:
        return {
            key: _restored(item, before[key], real[key]) if key in before and key in real else item
            for key, item in parts.items()
        }
    rows, was, kept = _array(edited), _array(seen), _array(original)
    if rows is not None and was is not None and kept is not None:
        return [_restored(*row) for row in zip(rows, was, kept, strict=True)] if len(rows) == len(kept) else rows
    same = type(edited) is type(seen) and edited == seen  # `1` is not the `true` that was there
    return original if same else edited


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _array(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _masked_at(value: Any, place: tuple[str, ...]) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return place if MASK in value else None
    items = list((_object(value) or {}).items()) or [(str(i), item) for i, item in enumerate(_array(value) or ())]
    return next((found for name, item in items if (found := _masked_at(item, (*place, name)))), None)
