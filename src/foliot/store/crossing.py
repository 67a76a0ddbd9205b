"""No resource that names something of another namespace is stored without a grant there.

It is part of the transaction that stores the resource, so that no way of writing goes around it, and a grant that is
taken back at the same moment is either seen or comes later. Grants that are written together with the resource count.
"""

from __future__ import annotations

from collections.abc import Sequence

from foliot.resources.references import GRANT, Grants, Reference, foreign
from foliot.store.base import Document, Filter, Put, Written
from foliot.store.documents import decode, key_range
from foliot.store.planning import Keyed
from foliot.store.transaction import Tx, rows

_ROUND = 1000


def crossing(changes: Sequence[Keyed]) -> dict[int, list[Reference]]:
    """The references of each change to other namespaces, by the place of the change; few have any."""
    return {
        index: found
        for index, each in enumerate(changes)
        if isinstance(each.change, Put) and each.change.only == "spec" and (found := _references(each))
    }


def check_crossing(changes: Sequence[Keyed], written: Sequence[Written], found: dict[int, list[Reference]]) -> Tx[None]:
    """Hold the references of what was just written against the grants, in the same transaction. Raises `Denied`."""
    changed = {index: refs for index, refs in found.items() if written[index].action != "unchanged"}
    grants: list[Document] = []
    for namespace in sorted({each.namespace for refs in changed.values() for each in refs}):
        grants += yield from _granted_in(namespace)
    granted = Grants(grants)
    for index, refs in changed.items():
        change = changes[index].change
        assert isinstance(change, Put)  # nothing else refers
        granted.check(change.document, refs)


def _granted_in(namespace: str) -> Tx[list[Document]]:
    after, before = key_range(Filter(GRANT, namespace))
    found: list[Document] = []
    while True:
        page = yield from rows("resource_list", after=after, before=before, count=_ROUND)
        found += (decode(row["document"]) for row in page)
        if len(page) < _ROUND:
            return found
        after = page[-1]["key"]


def _references(each: Keyed) -> list[Reference]:
    assert isinstance(each.change, Put)
    document = each.change.document
    try:
        return foreign({**document, "metadata": {**document["metadata"], "namespace": each.key.namespace}})
    except (AttributeError, TypeError):  # what is no resource at all is refused where it is stored
        return []
