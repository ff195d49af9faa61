"""Who else gives devices away: other schedulers, and pods that are nominated."""
