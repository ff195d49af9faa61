"""What a plugin writes on its node: checkpoints, CDI files, device metadata."""
