"""For ``kopf run`` in tests: the operator of ``operator/main.py`` with each kind that it can watch."""

from dra_operator.app.operator import Operator
from dra_operator.app.settings.settings import OperatorSettings
from dra_operator.sources.handlers import register

SETTINGS = OperatorSettings(
    controllers="auto,admission",
    feature_gates="DRADeviceTaintRules=true,DRAResourcePoolStatus=true,GenericWorkload=true",
    kubernetes_version="1.37",
    preemption=True,
)

register(Operator(SETTINGS))
