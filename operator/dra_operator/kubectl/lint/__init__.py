"""Faults of manifests: the checks of ``kubectl dra lint``. Pure."""
