"""What is answered about who one is: logins, accounts, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foliot.server.describing.schema import COUNT, TEXT, TIME, YES_NO, Schema, listof, ref, shape

_ROLES: Final[Schema] = {"type": "object", "additionalProperties": listof(TEXT)}
_TOKEN: Final[Mapping[str, Schema]] = {
    "id": TEXT,
    "name": TEXT,
    "roles": listof(TEXT),
    "namespaces": listof(TEXT),
    "createdBy": TEXT,
    "createdAt": TIME,
}
_TIMES: Final[Mapping[str, Schema]] = {"expiresAt": TIME, "revokedAt": TIME, "usedAt": TIME}

SHAPES: Final[dict[str, Schema]] = {
    "Me": shape(
        {
            "authenticated": YES_NO,
            "username": TEXT,
            "method": {"enum": ["bearer", "session", "none"]},
            "roles": _ROLES,
        },
        optional={"csrf_token": TEXT, "expires_at": TIME},
        about="Who the caller is. `roles` are by namespace; `*` is all of them. A session has a `csrf_token`, which "
        "its writes must carry in `X-CSRF-Token`.",
    ),
    "LoginConfig": shape(
        {
            "mode": {"enum": ["native", "off"]},
            "setup_required": YES_NO,
            "login_methods": listof({"enum": ["password", "oidc"]}),
        },
        about="How one can log in.",
    ),
    "LoggedOut": shape({"authenticated": {"const": False}}),
    "FirstUser": shape({"username": TEXT, "roles": _ROLES}),
    "PasswordChanged": shape({"username": TEXT, "sessions_ended": COUNT}),
    "Token": shape(_TOKEN, optional=_TIMES, about="Everything about a token but its text."),
    "NewTokenText": shape(
        {**_TOKEN, "token": TEXT}, optional=_TIMES, about="A token and its text, which is shown this once."
    ),
    "User": shape(
        {"username": TEXT, "roles": _ROLES, "createdBy": TEXT, "createdAt": TIME, "passwordAt": TIME},
        optional={"disabledAt": TIME, "loginAt": TIME},
        about="An account of somebody who logs in. `passwordAt` is when its password was set.",
    ),
    "UserList": shape({"items": listof(ref("User"))}),
    "TokenList": shape({"items": listof(ref("Token"))}),
}
