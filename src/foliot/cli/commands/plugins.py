"""`foliot plugins`: which plug-ins installed packages offer, which are enabled, and what is wrong with them."""

from __future__ import annotations

import click
import msgspec

from foliot.cli.invocation import current
from foliot.cli.reach import run
from foliot.cli.show.output import as_json, output_option
from foliot.cli.show.tables import table
from foliot.cli.terminal import out


@click.command()
@output_option("table", "json", default="table", help="table or json.")
def plugins(output: str) -> int:
    """List the plug-ins of installed packages: tools, hooks, model providers and channels.

    A plug-in is active once the setting plugins (FOLIOT_PLUGINS) names it; the enabled ones are loaded to see whether
    they work. A process that serves loads them anew, and takes up a changed setting, when it is sent SIGUSR1. Ends with
    1 when one that is enabled does not work.
    """
    from foliot.engine.plugins import examined

    current().only_here("The list of plug-ins")
    found = run(examined(current().settings().plugins))
    if output == "json":
        out(as_json([msgspec.to_builtins(each) for each in found]))
    elif found:
        rows = [[each.name, each.version, each.package, ",".join(each.kinds), each.state, each.error] for each in found]
        out(table(["NAME", "VERSION", "PACKAGE", "KINDS", "STATE", "ERROR"], rows))
    else:
        out("No installed package offers a plug-in.", err=True)
    return 1 if any(each.state in ("failed", "missing") for each in found) else 0
