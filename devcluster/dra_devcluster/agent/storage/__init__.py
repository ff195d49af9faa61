"""The volumes of a pod: folders and files of this machine, and their content."""
