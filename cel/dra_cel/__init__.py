"""CEL as Kubernetes speaks it: device selectors, and expressions of admission policies.

>>> selector = compile('device.driver == "gpu.example.com"')
>>> selector.matches(prepare("gpu.example.com", Device(name="gpu-0")))
True
"""

from .device import DEVICE_SELECTORS, PreparedDevice, device_selectors, prepare
from .environment import Environment
from .errors import CelError, CompileError, CostLimitExceeded, EvaluationError, Issue
from .selector import Program, Selector, compile

__all__ = [
    "DEVICE_SELECTORS",
    "CelError",
    "CompileError",
    "CostLimitExceeded",
    "Environment",
    "EvaluationError",
    "Issue",
    "PreparedDevice",
    "Program",
    "Selector",
    "compile",
    "device_selectors",
    "prepare",
]
