"""What the API server and the node agents of a development cluster have agreed on, beyond what Kubernetes says."""

from __future__ import annotations

from typing import Final

# On the Node object: what a request to the node's own server must carry as its bearer token.
SERVER_KEY_ANNOTATION: Final = "devcluster.kopf-dra/server-key"

# Sub-protocols of the websocket of ``exec``, best first.
EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
