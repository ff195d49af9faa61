"""For ``kopf run`` in tests: the operator of ``operator/main.py`` with each kind that it can watch."""

from dra_api.releases.release import Release
from dra_operator.app.operator import Operator, Options
from dra_operator.controllers import PreemptionSettings
from dra_operator.sources.handlers import register

GATES = {"DRADeviceTaintRules": True, "DRAResourcePoolStatus": True, "GenericWorkload": True}
OPTIONS = Options(gates=GATES, release=Release.V1_37, preemption=PreemptionSettings())

register(Operator(OPTIONS))
