"""``dra-operator simulate``: the operator's decisions on objects from files, and on a cluster's past.

``command`` has the arguments. ``attempts`` and ``report`` say for each pod and claim where it would go, or why it would
not; ``comparison`` and ``replay`` try placement strategies on a snapshot; ``trace`` plays tables of pods with the
policies of ``dra_operator.quality``. The operator decides here by its own code, and imports nothing of this package.
"""
