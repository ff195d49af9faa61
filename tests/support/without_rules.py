"""For ``kopf run`` in tests: the operator of ``operator/main.py``, which leaves DeviceTaintRules to another one."""

from dra_operator.app.operator import Operator
from dra_operator.app.settings.settings import OperatorSettings
from dra_operator.sources.handlers import register

register(Operator(OperatorSettings(feature_gates="DRADeviceTaintRules=false")))
