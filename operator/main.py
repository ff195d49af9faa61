"""For development: ``kopf run -A operator/main.py``. In clusters ``dra-operator run`` does more (see there)."""

from dra_operator.app.operator import Operator
from dra_operator.sources.handlers import register

register(Operator())
