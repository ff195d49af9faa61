"""An embedded Kubernetes API server.

::

    async with DevApiServer() as server:
        server.write_kubeconfig(path)

The way of a request: ``app`` finds the user and the target (``target``, ``call``) and asks ``authorization``;
``objects`` and ``subresources`` answer. Reading is ``read``, ``watch`` and ``render``; writing is ``checks``,
``patch``, ``write`` and ``delete``, with the rules of each kind in ``kinds`` and the shape of all kinds, as data, in
``structure``. ``store`` keeps the objects, ``registry`` knows what is served and where it is kept, ``controllers``
react to changes.
"""

from .authorization import Mode
from .errors import ServerError
from .server import DevApiServer, serve_in_thread

__all__ = ["DevApiServer", "Mode", "ServerError", "serve_in_thread"]
