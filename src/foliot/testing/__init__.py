"""Testing aids that ship to users: a server within the process of a test, and a suite for tool backends.

`served` starts a server and a worker on a free port; `tool_suite` holds for every tool backend. No other room imports
this one. Simulators and fakes that only Foliot's own tests need are in the folder `simulators/` beside `src/`.
"""


def __dir__() -> list[str]:
    return ["served", "tool_suite"]  # modules, loaded when they are imported: pytest and a server take a while
