"""Which claim has which devices, and who else gives them away."""
