"""The log of an HTTP server without what its requests hold.

aiohttp logs a request that it cannot read with the line at fault, which may be the header with a bearer token: that of
a user of the development cluster, or the one that Prometheus sends with a scrape. A server that is given ``REQUESTS``
as its ``logger`` names the kind of the fault only.
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError


class _WithoutContent(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.exc_info = f"{record.msg}: it cannot be read: {type(error).__name__}", None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


REQUESTS: Final = logging.getLogger(__name__)
REQUESTS.addFilter(_WithoutContent())
