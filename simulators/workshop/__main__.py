"""`python -m simulators.workshop`: play one workshop and see it, or thousands to see whether a promise breaks."""

from __future__ import annotations

import sys

from simulators.engine.__main__ import main
from simulators.workshop.profiles import PROFILES
from simulators.workshop.simulation import simulate

if __name__ == "__main__":
    sys.exit(main(simulate=simulate, profiles=PROFILES, prog="python -m simulators.workshop"))
