"""The operations on who one is: logging in, accounts, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foliot.server.describing.schema import COUNT, TEXT, TIME, YES_NO, Schema, listof, ref, shape
from foliot.server.describing.told import Told, form
from foliot.server.routes import auth, tokens, users

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

OPERATIONS: Final[Mapping[tuple[str, str], Told]] = {
    ("get", "/v1/auth/me"): Told("getMe", ref("Me")),
    ("get", "/v1/auth/config"): Told("getLoginConfig", ref("LoginConfig")),
    ("post", "/v1/auth/setup"): Told(
        "setUp", ref("FirstUser"), codes=("201",), body=form(auth.SetUp), fails=(403, 409, 415)
    ),
    ("post", "/v1/auth/login"): Told("logIn", ref("Me"), body=form(auth.Login), fails=(401, 403, 409, 415)),
    ("post", "/v1/auth/logout"): Told("logOut", ref("LoggedOut"), fails=(403,)),
    ("get", "/v1/auth/oidc/login"): Told("beginOidcLogin", codes=("303",)),
    ("get", "/v1/auth/oidc/callback"): Told("endOidcLogin", codes=("303",), fails=(401, 403)),
    ("post", "/v1/auth/change-password"): Told(
        "changePassword", ref("PasswordChanged"), body=form(auth.ChangePassword), fails=(409,)
    ),
    ("post", "/v1/auth/admin/reset-password"): Told(
        "resetPassword", ref("PasswordChanged"), body=form(auth.ResetPassword)
    ),
    ("get", "/v1/users"): Told("listUsers", ref("UserList")),
    ("post", "/v1/users"): Told("createUser", ref("User"), codes=("201",), body=form(users.NewUser), fails=(409,)),
    ("put", "/v1/users/{username}/roles"): Told("setUserRoles", ref("User"), body=form(users.UserRoles), fails=(409,)),
    ("post", "/v1/users/{username}/disable"): Told("disableUser", ref("User"), fails=(409,)),
    ("post", "/v1/users/{username}/enable"): Told("enableUser", ref("User"), fails=(409,)),
    ("get", "/v1/tokens"): Told("listTokens", ref("TokenList")),
    ("post", "/v1/tokens"): Told(
        "createToken", ref("NewTokenText"), codes=("201",), body=form(tokens.NewToken), fails=(409,)
    ),
    ("delete", "/v1/tokens/{token_id}"): Told("revokeToken", ref("Token")),
}

FORMS: Final = (
    auth.SetUp,
    auth.Login,
    auth.ChangePassword,
    auth.ResetPassword,
    tokens.NewToken,
    users.NewUser,
    users.UserRoles,
)
