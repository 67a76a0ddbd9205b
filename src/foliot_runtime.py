"""The command `foliot` as it is installed, beside the import package `foliot`.

Another project in the package index has the distribution name `foliot`, and the same import name. When both are
installed its files replace some of ours, mostly `foliot/__init__.py`, so what says so cannot be within `foliot`.

Only what the interpreter has loaded by itself is imported here.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

REPAIR = "pip uninstall foliot; pip install --force-reinstall foliot-runtime"


def main() -> "NoReturn":
    """Run the command line. Exits with code 2 when another project's package `foliot` is in its place."""
    try:
        from foliot.cli.entry import main as run
    except ImportError as error:
        if not (trouble := foreign_package()):
            raise
        sys.stderr.write(f"error: {trouble}\nhint: {REPAIR}\n")
        raise SystemExit(2) from error
    run()


def foreign_package() -> str:
    """Returns what another project's package `foliot` has done to this installation. Blank when there is none."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("foliot")
    except PackageNotFoundError:
        found = None
    # Installations of earlier versions of this project have that name too.
    if found is not None and not any(each.name == "foliot" and _is_ours(each.value) for each in found.entry_points):
        return f"the distribution foliot {found.version} is installed: another project's, with the same import package"
    import foliot

    if "Runtime" not in getattr(foliot, "__all__", ()):
        return f"the package foliot was replaced or removed in part: {foliot.__file__ or 'it has no __init__.py'}"
    return ""


def _is_ours(command: str) -> bool:
    return command.partition(":")[0] in ("foliot.cli.entry", __name__)
