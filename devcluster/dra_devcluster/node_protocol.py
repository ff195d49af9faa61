"""Names and limits that API server and node agents of a development cluster share beyond Kubernetes."""

from __future__ import annotations

from typing import Final

# Annotation of a Node as its agent writes it: the bearer token for requests to the node's own server. The API server of
# a development cluster keeps it to itself; others have no use for it.
SERVER_KEY_ANNOTATION: Final = "devcluster.kopf-dra/server-key"

# Annotation beside it: host and port of that server. The key is sent there only, whatever the status of the Node says.
SERVER_ADDRESS_ANNOTATION: Final = "devcluster.kopf-dra/server-address"

# Sub-protocols of the websocket of ``exec`` and ``attach``, best first.
EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")

# Sub-protocols of the websocket of ``portforward``: SPDY inside of it.
PORT_FORWARD_PROTOCOLS: Final = ("SPDY/3.1+portforward.k8s.io",)

# The longest message of these websockets. Frames of a port forward end at 1 MiB, and a message may have several.
LONGEST_MESSAGE_BYTES: Final = 16 * 2**20
