"""Which devices of a node are tried first: one file for each order.

All that an order decides is which of several allocations is found. Every device is tried in the end
(``search``).
"""
