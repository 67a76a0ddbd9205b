"""`python -m foliot.testing.workshop`: play one workshop and see it, or thousands to see whether a promise breaks."""

from __future__ import annotations

import sys

from foliot.testing.simulator.__main__ import main
from foliot.testing.workshop.profiles import PROFILES
from foliot.testing.workshop.simulation import simulate

if __name__ == "__main__":
    sys.exit(main(simulate=simulate, profiles=PROFILES, prog="python -m foliot.testing.workshop"))
