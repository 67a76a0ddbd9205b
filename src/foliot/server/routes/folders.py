"""Folders: what agents keep for users. They are listed, read and deleted here.

A folder is its user's. Admins of the namespace may do the same with those of others, and with those for runs
without a user. For everybody else they do not exist.
"""

from __future__ import annotations

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from foliot.runtime.answers import FolderOrder, RunContent
from foliot.server.audit import ActRecord
from foliot.server.auth.guard import new_router
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.http.bodies import form_in
from foliot.server.http.envelope import REQUEST_ID
from foliot.server.http.names import Continue, Limit, Namespace, parameters, space
from foliot.server.http.parameters import Path, Query
from foliot.server.http.responses import Json
from foliot.server.routes.runs import ContentDigest
from foliot.store.folders import FolderKey, SqlFolders, no_folder

router = new_router("folders")

AgentName = Annotated[str, Path(min_length=1, max_length=253, description="The agent that keeps the folder.")]
User = Annotated[str, Query(max_length=253, description="Whose folder; by default the caller's.")]
System = Annotated[bool, Query(description="The folder for runs without a user.")]


@router.get("/v1/folders")
async def list_folders(
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    agent: Annotated[str, Query(max_length=253, description="Only those of this agent.")] = "",
    user: Annotated[str, Query(max_length=253, description="Only those of this user.")] = "",
    mine: Annotated[bool, Query(description="Only the caller's own.")] = False,
    limit: Limit = 50,
    after: Continue = None,
) -> Response:
    """Folders of a namespace by agent and user: the caller's own, for an admin those of everybody."""
    where = space(namespace)
    own = mine or not caller.may("admin", where)
    if own and user not in ("", caller.name):
        return Json({"items": []})
    whose = caller.name if own else user or None
    with parameters():
        page = await _stored(services).list(
            where, agent=agent, user=whose, limit=limit, cursor=await services.cursors.open(after)
        )
    return Json(await services.cursors.page(page.items, page.cursor))


@router.get("/v1/folders/{agent}")
async def get_folder(
    agent: AgentName,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    user: User = "",
    system: System = False,
) -> Response:
    """One folder: how much is in it, which run changed it last, and the digest of its tree."""
    return Json(await _stored(services).get(_key(caller, space(namespace), agent, user, system)))


@router.get("/v1/folders/{agent}/content/{digest}")
async def content(
    agent: AgentName,
    digest: ContentDigest,
    services: Services,
    caller: Caller,
    namespace: Namespace = None,
    user: User = "",
    system: System = False,
) -> Response:
    """Show content of a folder, a folder in it or a file, by its digest."""
    data = await _stored(services).content(_key(caller, space(namespace), agent, user, system), digest)
    return Json(RunContent(digest, data))


@router.post("/v1/folders/{agent}/delete")
async def delete(
    agent: AgentName, request: Request, services: Services, caller: Caller, namespace: Namespace = None
) -> Response:
    """Delete a folder with all that is in it. A run that had begun with it does not bring it back."""
    order = await form_in(request, FolderOrder, namespace)
    key = _key(caller, order.namespace, agent, order.user, order.system)
    act = ActRecord(
        services.runtime,
        caller,
        "folder_deleted",
        "Folder",
        key.namespace,
        agent,
        request=request.scope[REQUEST_ID],
        user=key.user,
    )
    await _stored(services).delete(key, in_transaction=act.record)
    act.tell()
    return Response(status_code=204)


def _stored(services: Services) -> SqlFolders:
    return SqlFolders(services.database)


def _key(caller: Caller, namespace: str, agent: str, user: str, system: bool) -> FolderKey:
    """Returns a folder that the caller may read and delete. One that is hidden is missing, in the same words."""
    key = FolderKey(namespace, agent, "" if system else user or caller.name)
    own = bool(key.user) and key.user == caller.name
    if not caller.sees(namespace) or not (own or caller.may("admin", namespace)):
        raise no_folder(key)
    return key
