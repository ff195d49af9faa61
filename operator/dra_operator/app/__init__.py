"""The process: Kopf, start and stop, probes, metrics. Only ``dra-operator run`` loads it."""
