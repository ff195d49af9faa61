"""For ``kopf run`` in tests: the operator of ``operator/main.py``, which leaves DeviceTaintRules to another one."""

from dra_operator.app.operator import Operator, Options
from dra_operator.sources.handlers import register

register(Operator(Options(gates={"DRADeviceTaintRules": False})))
