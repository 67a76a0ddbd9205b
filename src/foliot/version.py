"""The one place that states the version, which the build reads, and how the package is installed."""

__version__ = "0.1.0"

# The import package and the command are `foliot`. That name belongs to another project in the package index.
DISTRIBUTION = "foliot-runtime"


def install_command(*extras: str) -> str:
    """Returns the command that installs Foliot with some extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"
