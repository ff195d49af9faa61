"""`meta.k8s.io/v1` Tables: the rows that `kubectl get` prints, rendered by the server as the real one does.

    render_table(resource, objects, now=..., include="Metadata", metadata={...}) -> Json

Columns are data (`schema/table-columns.json`), cells are paths in them, or small functions; custom resources bring
their own columns as JSON paths (`additionalPrinterColumns`).
"""

from dra_devcluster.apiserver.tables.cells import age, human_duration

from .table import partial_metadata, render_table, shows_labels, shows_spec

__all__ = ["age", "human_duration", "partial_metadata", "render_table", "shows_labels", "shows_spec"]
