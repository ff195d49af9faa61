"""The three patch formats of the API, as pure functions from document and patch to a new document.

    merge_patch(document, patch)                      RFC 7386, application/merge-patch+json
    json_patch(document, operations)                  RFC 6902, application/json-patch+json
    strategic_merge_patch(document, patch, schema)    application/strategic-merge-patch+json (built-in kinds only)

None of them changes its arguments; results may share unchanged parts with them. A patch that cannot be applied
raises PatchRefused with the text for the client (the only exception of this package; the server answers 422 for
JSON patches and 400 for the others).
"""

from .errors import PatchRefused
from .json import json_patch
from .merge import merge_patch
from .strategic import strategic_merge_patch

__all__ = ["PatchRefused", "json_patch", "merge_patch", "strategic_merge_patch"]
