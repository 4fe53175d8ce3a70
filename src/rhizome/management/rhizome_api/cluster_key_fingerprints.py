"""/api/rhizome/cluster/keys: which cluster keys each broker has, by their fingerprints.

This is for rotating the key (`rhizome cluster rotate-key`): a step is made once every broker has
made the one before. Only administrators may see it, because a guess of a key can be tested with its
fingerprint.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rhizome.management.api_context import Context
from rhizome.management.http.api_call import Call
from rhizome.management.http.auth import ADMINISTRATOR
from rhizome.management.http.endpoint import GET
from rhizome.management.http.json_responses import Row, answer
from rhizome.management.openapi.endpoint_shapes import TEXT, by_name, many, record, row_of
from rhizome.management.peers.cluster_wide_queries import documents
from rhizome.management.rhizome_api.cluster_status_and_changes import view_of

PATH: Final = "/api/rhizome/cluster/keys"
OWN_PATH: Final = PATH + "/own"

OWN: Final = record("ClusterKeys", {"keys": many(TEXT), "links": by_name(TEXT)})
ALL: Final = record("ClusterKeysOfAll", {"brokers": by_name(OWN), "unreached": many(TEXT)})


def own_keys(context: Context) -> Row:
    """``keys``: this broker proves with the first; ``links``: which one made each link."""
    view = view_of(context)
    return {"keys": view.key_fingerprints(), "links": view.link_fingerprints()}


async def show_own(call: Call) -> Response:
    """The keys of the broker that is asked."""
    return answer(own_keys(call.context))


async def show_keys(call: Call) -> Response:
    """The keys of every broker; ``unreached`` are those of the cluster that can't be asked now, or
    whose release doesn't tell."""
    context = call.context
    found, _ = await documents(call, call.question(OWN_PATH))
    brokers = {context.name: own_keys(context), **found}
    document = await view_of(context).cluster_document()
    missing = [each.name for each in document.brokers if each.name not in brokers]
    return answer({"brokers": brokers, "unreached": missing})


ENDPOINTS: Final = (
    GET(PATH, ADMINISTRATOR, show_keys, row_of(ALL)),
    GET(OWN_PATH, ADMINISTRATOR, show_own, row_of(OWN)),
)
