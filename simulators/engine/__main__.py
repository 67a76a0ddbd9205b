"""`python -m simulators.engine`: play one seed and see it, or thousands and see whether any breaks a promise."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Protocol, TypeAlias

from simulators.engine.profiles import ANY, PROFILES
from simulators.engine.simulation import simulate

CHUNK = 50
MOST_FAILURES_SHOWN = 3


class Played(Protocol):
    """The result of one seed; printed, it says how to replay it."""

    @property
    def ok(self) -> bool: ...

    @property
    def digest(self) -> str: ...


Simulate: TypeAlias = Callable[[int, str], Played]


def main(
    arguments: Sequence[str] | None = None,
    *,
    simulate: Simulate = simulate,
    profiles: Iterable[str] = PROFILES,
    prog: str = "python -m simulators.engine",
) -> int:
    """The exit code: 0 when every promise was kept, 1 otherwise."""
    options = _parser(prog, profiles).parse_args(arguments)
    if options.seed is not None:
        return _play_one(simulate, options.seed, options.profile, options.verbose)
    return _play_many(simulate, options.start, options.seeds, options.profile, options.jobs)


def _parser(prog: str, profiles: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Play one seed and see it, or thousands.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="play this seed")
    which.add_argument("--seeds", type=int, help="play that many, and stop at nothing but a broken promise")
    parser.add_argument("--start", type=int, default=0, help="the first of --seeds (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use for --seeds (default: 1)")
    parser.add_argument("--profile", choices=[ANY, *profiles], default=ANY, help="which kind of trouble (default: any)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the history even when all went well")
    return parser


def _play_one(simulate: Simulate, seed: int, profile: str, verbose: bool) -> int:
    report = simulate(seed, profile)
    if verbose or not report.ok:
        _say(str(report))
    _say(f"seed {seed}: {'every promise was kept' if report.ok else 'BROKEN'}; digest {report.digest}")
    return 0 if report.ok else 1


def _play_many(simulate: Simulate, start: int, count: int, profile: str, jobs: int) -> int:
    began = time.monotonic()
    chunks = [range(first, min(first + CHUNK, start + count)) for first in range(start, start + count, CHUNK)]
    failed = 0
    for failures in _chunk_results(partial(play_chunk, simulate), chunks, profile, jobs):
        for text in failures:
            failed += 1
            if failed <= MOST_FAILURES_SHOWN:
                _say(text)
    took = time.monotonic() - began
    _say(f"{count} seeds from {start}, profile {profile}: {failed} broken; {took:.1f} s in all")
    return 1 if failed else 0


def _chunk_results(
    play: Callable[[range, str], list[str]], chunks: list[range], profile: str, jobs: int
) -> Iterator[list[str]]:
    profiles = [profile] * len(chunks)
    if jobs <= 1:
        yield from map(play, chunks, profiles)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(play, chunks, profiles)


def play_chunk(simulate: Simulate, seeds: range, profile: str) -> list[str]:
    """The reports of those seeds that broke a promise."""
    return [str(report) for seed in seeds if not (report := simulate(seed, profile)).ok]


def _say(text: str) -> None:
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
