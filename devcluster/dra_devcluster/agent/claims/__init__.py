"""Has the claims of pods prepared and unprepared, remembers them on disk, and knows the devices of each container."""
