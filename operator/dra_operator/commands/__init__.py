"""Commands for people: ``dra-operator cel``, and what ``simulate`` and ``kubectl dra`` share. They do not need Kopf."""
