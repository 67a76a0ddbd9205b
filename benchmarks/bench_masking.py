"""What hiding secrets in a megabyte of text costs, beside one search for the values as they are.

    python benchmarks/bench_masking.py [--size 1000000]

The plain search is a pattern of all spellings of all values, as it was done before escapes and wrapped encodings were
looked for. Text without a value is what nearly every result is. The aim: no more than three times the plain search for
one value in prose, and for five hundred values no more than twice what one costs.
"""

from __future__ import annotations

import argparse
import random
import re
import string
import time
from collections.abc import Callable

from verdict import Verdict

from foliot.tools.secrets.masking import MASK, Masker, _spellings  # pyright: ignore[reportPrivateUsage]

VERDICT = Verdict()

TEXTS = {
    "prose": "The quick brown fox jumps over the lazy dog.\n",
    "JSON": '{"id": 1, "name": "a\\\\nb"},',
    "URLs": "https://x.example/a%20b?c=%2F\n",
    "bytes": "de:ad:be:ef ",
    "escapes": "\\\\u00e9 &amp; %41 ",
}


def plain(values: list[str]) -> Callable[[str], str]:
    words = {spelling for value in values for spelling in _spellings(value)}
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
    return lambda text: pattern.sub(MASK, text)


def cost(mask: Callable[[str], str], text: str) -> float:
    """Milliseconds of this process: the best of three."""
    mask(text[:100])
    times: list[float] = []
    for _ in range(3):
        began = time.process_time()
        mask(text)
        times.append((time.process_time() - began) * 1e3)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1_000_000)
    size = parser.parse_args().size
    chance = random.Random(11)
    took: dict[tuple[str, int], float] = {}
    print(f"{'text':>8} {'values':>6} {'plain search':>13} {'masker':>9} {'ratio':>6}")
    for number in (1, 500):
        values = ["".join(chance.choices(string.ascii_letters + string.digits, k=40)) for _ in range(number)]
        masker = Masker()
        masker.add(*values)
        for name, piece in TEXTS.items():
            text = piece * (size // len(piece))
            took[name, number] = now = cost(masker.mask, text)
            if number > 1:  # a pattern of so many words takes minutes
                print(f"{name:>8} {number:>6} {'':>13} {now:>6.1f} ms")
                continue
            before = cost(plain(values), text)
            print(f"{name:>8} {number:>6} {before:>10.1f} ms {now:>6.1f} ms {now / before:>6.2f}")
            if name == "prose":
                VERDICT.hold("prose, one value, beside the plain search", now / before, "times", most=3)
    VERDICT.hold("prose, 500 values beside one", took["prose", 500] / took["prose", 1], "times", most=2)
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
