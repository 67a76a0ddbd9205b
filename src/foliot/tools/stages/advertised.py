"""Was the tool given to this run?"""

from __future__ import annotations

from foliot.tools.base import Invocation
from foliot.tools.rules import Rules
from foliot.tools.verdict import Verdict


class Advertised:
    """A run calls only tools that it was shown. A caller without a list (a person, a test) has no such limit."""

    layer = "advertised"

    def __call__(self, call: Invocation, rules: Rules) -> Verdict:
        shown = call.caller.advertised
        if shown is None:
            return _NO_LIST
        return _SHOWN if call.tool in shown else _hidden(call)


def _hidden(call: Invocation) -> Verdict:
    return Verdict("deny", Advertised.layer, f"there is no tool named {call.tool!r} for this run: it was not given it")


_SHOWN = Verdict("allow", Advertised.layer, "the run was given this tool")
_NO_LIST = Verdict("allow", Advertised.layer, "the caller has no list of tools")
