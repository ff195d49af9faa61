"""The port for probes and metrics: who asks, what is checked, and what is answered while the operator decides."""
