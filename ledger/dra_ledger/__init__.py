"""What slices publish, and who holds what: pools, devices, counters, capacity, taints, and the claims that have them.

Pure: no I/O, no clock, no client. It stands below the operator and the commands, and imports ``dra_api`` and
``dra_cel`` only. In this package, a section without a page is a section of allocator.md.
"""
