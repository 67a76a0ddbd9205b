"""`python -m simulators.pairs`: every pair of transactions that meets in a table, and what was found in each."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from foliot.dev.session import ServiceSession
from simulators.pairs.company import company, line


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _main(url: str, only: Sequence[str], pair: Sequence[str], switches: int, most: int, part: str) -> int:
    began = time.monotonic()
    async with company(url) as playing:
        if pair:
            pairs = [(pair[0], pair[1])]
        else:
            pairs = await playing.pairs(*only)
            number, _, count = part.partition("/")
            pairs = pairs[int(number) :: int(count)]
        plays = 0
        faulty = 0
        _say(f"{'pair':60} {'whole':>5} {'plays':>6}  findings")
        for each in pairs:
            report = await playing.explore(each, switches=switches, most=most)
            plays += report.plays + report.serial
            _say(line(report))
            if report.findings:
                faulty += 1
                shown: set[str] = set()
                for finding in report.findings:
                    if finding.kind not in shown:
                        shown.add(finding.kind)
                        _say(f"    {finding.text}\n    in: {finding.schedule}")
        seconds = time.monotonic() - began
        _say(f"{len(pairs)} pairs, {plays} plays in {seconds:.0f} s ({plays / seconds:.0f}/s), {faulty} with findings")
        return 1 if faulty else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulators.pairs", description=__doc__)
    parser.add_argument("only", nargs="*", help="beginnings of the names of acts, such as run. or budget.reserve")
    parser.add_argument("--pair", nargs=2, default=(), metavar="ACT", help="one pair only")
    parser.add_argument("--switches", type=int, default=2, help="how often somebody who could go on is interrupted")
    parser.add_argument("--most", type=int, default=200, help="plays of one pair, at most")
    parser.add_argument("--part", default="0/1", help="every n-th pair only, such as 0/2 and 1/2")
    given = parser.parse_args(arguments)
    session = ServiceSession.begin()
    try:
        with session.database() as url:
            return asyncio.run(_main(url, given.only, given.pair, given.switches, given.most, given.part))
    finally:
        session.end()


if __name__ == "__main__":
    sys.exit(main())
