"""For development: ``kopf run -A operator/main.py``. In clusters ``dra-operator run`` does more (see there)."""

from dra_operator.app.handlers import register
from dra_operator.app.operator import Operator

register(Operator())
