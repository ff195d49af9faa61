"""Tests a DRA driver, in any language, on one machine without a cluster.

The package plays a kubelet and an API server for a driver, and has the checks that a driver should pass.
Three ways in: the command ``dra-driver-test`` (``cli``), tests of a driver's own suite (``pytest_plugin``), and
programs (``kit``). ``checks`` has the checks, ``harness`` their surroundings.
"""
