"""``dra-operator simulate --trace``: how full each policy makes a cluster."""
