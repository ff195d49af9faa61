"""Tests a DRA driver, in whatever language, on one machine without a cluster.

The package plays what is around a driver, a kubelet and an API server, and has the checks that a driver should pass.
Three ways in: the command ``dra-driver-test`` (``cli``), tests of a driver's own suite (``pytest_plugin``), and
programs (``kit``). ``checks`` has what is checked, ``harness`` what the checks stand on.
"""
