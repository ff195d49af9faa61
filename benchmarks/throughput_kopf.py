"""The operator as ``kopf run`` runs it, with Kopf's own watches: the side "kopf" of ``throughput.py``."""

from dra_operator.app.operator import Operator
from dra_operator.app.settings import OperatorSettings
from dra_operator.sources.handlers import register

operator = Operator(OperatorSettings(controllers="templates,release,placement"))
# Nothing sees whether Kopf's watches are open, so each pod would wait for a look at all claims before it is bound.
operator.watches.sees = lambda resource: True  # type: ignore[method-assign]
register(operator)
