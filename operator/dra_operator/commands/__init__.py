"""Commands for people: ``dra-operator cel`` and ``simulate``, ``kubectl dra``. They do not need Kopf."""
