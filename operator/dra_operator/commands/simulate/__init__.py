"""``dra-operator simulate``: its arguments, the attempts that it makes, and their reports."""
