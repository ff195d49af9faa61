"""A driver as a command: its flags, and what the sub-commands of dra-kubelet-plugin do."""
