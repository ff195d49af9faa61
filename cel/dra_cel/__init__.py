"""CEL as Kubernetes speaks it: device selectors, and expressions of admission policies.

Examples:
    >>> from dra_api.resource import Device
    >>> selector = compile('device.driver == "gpu.example.com"')
    >>> selector.matches(prepare("gpu.example.com", Device(name="gpu-0")))
    True

``compile`` gives a ``Selector`` for prepared devices, ``Program(expression, environment).evaluate(variables)`` a value
in any environment. Errors: see ``dra_cel.basics.errors``.
"""

from .analysis.references import Reference
from .basics.errors import CelError, CompileError, CostLimitExceeded, EvaluationError, Issue
from .device import DEVICE_SELECTORS, PreparedDevice, derived_attributes, device_selectors, prepare
from .environment import Environment, admission_policies
from .selector import DerivedAttribute, Program, Selector, compile, selector_check

__all__ = [
    "DEVICE_SELECTORS",
    "CelError",
    "CompileError",
    "CostLimitExceeded",
    "DerivedAttribute",
    "Environment",
    "EvaluationError",
    "Issue",
    "PreparedDevice",
    "Program",
    "Reference",
    "Selector",
    "admission_policies",
    "compile",
    "derived_attributes",
    "device_selectors",
    "prepare",
    "selector_check",
]
