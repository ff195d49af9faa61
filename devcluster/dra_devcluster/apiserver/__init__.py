"""An embedded Kubernetes API server.

::

    async with DevApiServer() as server:
        server.write_kubeconfig(path)

The way of a request: ``server.App`` reads the target from its URL (``wire``), finds the user (``identity``) and asks
``authorization`` and ``admission``. ``endpoints`` has the handler, ``verbs`` its work on objects, ``kinds`` the rules
of each kind, and ``structure`` the shape of all kinds, as data. ``store`` keeps the objects, ``registry`` has the
served resources with their places in the store, and ``controllers`` react to changes."""

from .authorization import Mode
from .errors import ServerError
from .server import DevApiServer, serve_in_thread

__all__ = ["DevApiServer", "Mode", "ServerError", "serve_in_thread"]
