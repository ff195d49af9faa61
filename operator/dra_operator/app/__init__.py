"""The process: Kopf wiring, start-up and shutdown, probes, metrics. Loaded by ``dra-operator run`` alone."""
