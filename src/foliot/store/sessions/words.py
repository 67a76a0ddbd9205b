"""The words of texts, as they are stored for searches and looked for: the same rule for both databases. Pure.

A word is a run of letters and digits in small letters and without accents. Scripts that put no spaces between words
give each two neighbouring characters as one. What somebody searches for becomes words too, so no sign in it means
anything to a database.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Final

LONGEST_WORD: Final = 40
MOST_WORDS: Final = 10_000
MOST_ASKED: Final = 32
# Shorter beginnings of words stand for too many of them.
SHORTEST_BEGINNING: Final = 3
_WORD: Final = re.compile(r"[^\W_]+")
# Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar: written without spaces.
_UNSPACED: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def words_in(text: str) -> list[str]:
    """Returns the words of a text, in their order."""
    found: list[str] = []
    for run in _WORD.findall(plain(text)):
        place = 0
        for unspaced in _UNSPACED.finditer(run):
            found += [run[place : unspaced.start()], *_pairs(unspaced[0])]
            place = unspaced.end()
        found.append(run[place:])
    return [word[:LONGEST_WORD] for word in found if word]


def plain(text: str) -> str:
    """Returns a text in small letters, without accents and other marks above and below."""
    if text.isascii():
        return text.lower()
    taken_apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in taken_apart if unicodedata.category(c) not in ("Mn", "Cs"))


def _pairs(run: str) -> list[str]:
    return [a + b for a, b in pairwise(run)] if len(run) > 1 else [run]


def indexed(texts: Iterable[str], scopes: Iterable[str]) -> str:
    """Returns what is stored of a turn: each word once, and whose they are."""
    words = dict.fromkeys(scopes)
    for text in texts:
        for word in words_in(text):
            words[word] = None
            if len(words) >= MOST_WORDS:
                return " ".join(words)
    return " ".join(words)


def asked(text: str, scope: str) -> str:
    """Returns the words that somebody looks for, within a scope; blank when there is none to look for.

    A word stands for all that begin with it, unless it is very short.
    """
    words = list(dict.fromkeys(words_in(text)))[:MOST_ASKED]
    if not words:
        return ""
    return " ".join([scope, *(f"{word}*" if _is_beginning(word) else word for word in words)])


def _is_beginning(word: str) -> bool:
    return len(word) >= SHORTEST_BEGINNING and not _UNSPACED.match(word)


def scope_of(*names: str) -> str:
    """Returns the word that stands for a namespace, a user in it, or a session."""
    return "xq" + sha256("\x00".join(names).encode(errors="surrogatepass")).hexdigest()[:20]
