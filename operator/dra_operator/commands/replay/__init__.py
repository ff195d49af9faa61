"""``dra-operator simulate --trace SNAPSHOT``: a cluster's last week, with each placement strategy."""
