"""An embedded Kubernetes API server: ``DevApiServer``."""

from .server import DevApiServer, ServerError, serve_in_thread

__all__ = ["DevApiServer", "ServerError", "serve_in_thread"]
