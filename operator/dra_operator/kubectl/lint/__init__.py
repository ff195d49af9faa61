"""What is wrong with manifests: the checks of ``kubectl dra lint``, each in a file of its own. Pure."""
