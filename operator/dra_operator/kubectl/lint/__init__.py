"""What is wrong with manifests: the checks of ``kubectl dra lint``. Pure."""
