"""Which pods have to end so that one of a higher priority fits: preemption, behind the seam of PostFilter."""
