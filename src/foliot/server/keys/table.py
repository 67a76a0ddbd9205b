"""What a key means for each POST: every route that is not here keeps its answers under the keys of its callers.

A request may be broken off when its server dies: whether it was done is then not known. Routes of `AGAIN` do it again
when they are asked again, because what they do cannot be done twice; all others say that it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# Routes for which the header means something else, or nothing; and why.
APART: Final[Mapping[str, str]] = {
    "/v1/tasks": "the task itself has the key, for as long as there is the task",
    "/v1/work/tasks": "the task itself has the key, for as long as there is the task",
    "/v1/chat/completions": "the run itself has the key; its answer may be a stream",
    "/v1/responses": "the run itself has the key; its answer may be a stream",
    "/mcp": "a protocol of its own, with the key among the arguments of a tool",
    "/v1/webhook-deliveries/{endpoint_id}": "public: a delivery is known by the id that its sender gave it",
    "/v1/tool-callbacks/{request_id:path}": "public: a result is taken once by the id of its call",
    "/v1/auth/setup": "public, and can be done once",
    "/v1/auth/login": "public: each login is a session of its own, whose cookie is told once",
    "/v1/auth/logout": "public, and done twice is done once",
    "/v1/auth/change-password": "ends the session that it came in, and needs the password as it was before",
    "/v1/auth/admin/reset-password": "done twice is done once; nothing that was made with a password is kept",
    "/v1/tokens": "the text of a token is told once and kept nowhere; its name is taken once",
    "/v1/users": "a name is taken once; nothing that was made with a password is kept",
    "/v1/audit/verify": "changes nothing",
    "/v1/work/tools/{name}/test": "changes nothing",
    "/v1/work/rules/explain": "changes nothing",
    "/v1/work/rules/simulate": "changes nothing",
}

# Done twice is done once: it sets something, names what it makes, or finds that it was done before.
AGAIN: Final = frozenset(
    {
        "/v1/{kind}",
        "/v1/apply",
        "/v1/work/declared",
        "/v1/tasks/{name}/cancel",
        "/v1/tasks/{name}/archive",
        "/v1/work/tasks/{name}/cancel",
        "/v1/work/tasks/{name}/archive",
        "/v1/runs/{run_id}/cancel",
        "/v1/runs/{run_id}/input",
        "/v1/runs/{run_id}/answer",
        "/v1/work/runs",
        "/v1/work/runs/{name}/fork",
        "/v1/work/runs/{name}/resume",
        "/v1/work/runs/{name}/settle",
        "/v1/work/runs/{name}/cancel",
        "/v1/work/runs/{name}/answer",
        "/v1/tool-approvals/{name}/approve",
        "/v1/tool-approvals/{name}/deny",
        "/v1/tool-approvals/{name}/edit",
        "/v1/work/approvals/{name}/decide",
        "/v1/work/approvals/{name}/revoke",
        "/v1/responses/{response_id}/cancel",
        "/v1/work/limits",
        "/v1/work/limits/clear",
        "/v1/work/classes/mend",
        "/v1/users/{username}/disable",
        "/v1/users/{username}/enable",
    }
)


def keeps_answers(path: str) -> bool:
    """Whether the POST of a path, as it is declared or as it is described, is done once by its key."""
    return path not in _APART


_APART: Final = {*APART, *(re.sub(r":\w+}", "}", path) for path in APART)}
