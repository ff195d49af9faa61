"""A cluster of objects that nothing serves: what keeps its pods back, and what placed ones take."""
