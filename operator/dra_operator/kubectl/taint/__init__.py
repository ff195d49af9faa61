"""``kubectl dra taint``: what a DeviceTaintRule would do before it is applied. Pure."""
