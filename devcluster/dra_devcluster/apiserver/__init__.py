"""An embedded Kubernetes API server.

::

    async with DevApiServer() as server:
        server.write_kubeconfig(path)

The way of a request: ``server.App`` reads the target from its URL (``wire``), finds the user (``identity``) and asks
``authorization`` and ``admission``. ``endpoints`` has the handler; what it does to objects is in ``verbs``, with the
rules of each kind in ``kinds`` and the shape of all kinds, as data, in ``structure``. ``store`` keeps the objects,
``registry`` knows what is served and where it is kept, and ``controllers`` react to changes.
"""

from .authorization import Mode
from .errors import ServerError
from .server import DevApiServer, serve_in_thread

__all__ = ["DevApiServer", "Mode", "ServerError", "serve_in_thread"]
