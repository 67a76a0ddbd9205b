"""The Python that a fence of processes shows: that of the system, or else the one of this process."""

from __future__ import annotations

import os
import sys
from typing import Final

from foliot.sandbox.base import Mount

# A fence shows /usr.
SYSTEM: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
OWN: Final = "/opt/foliot-python"
# An interpreter that was built with a shared library looks for it where it was installed, which a fence does not show.
_WITH_LIBRARY: Final = f'LD_LIBRARY_PATH={OWN}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} exec "$0" "$@"'


def system_interpreter() -> str | None:
    """Finds the Python that is in each fence."""
    return next((path for path in SYSTEM if os.path.exists(path)), None)


def own_mount() -> Mount:
    """Makes the mount that shows the Python of this process."""
    return Mount(sys.base_prefix, OWN, part=True)


def own_command() -> list[str]:
    """Returns how a program inside starts the Python of this process."""
    import sysconfig

    python = f"{OWN}/bin/python3"
    return ["/bin/sh", "-c", _WITH_LIBRARY, python] if sysconfig.get_config_var("Py_ENABLE_SHARED") else [python]
