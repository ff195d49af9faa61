"""What all random histories have in common: ``histories`` of a cluster, ``plugin_histories`` of a node's plugin.

A history is a seed, from which a *game* (``game``) makes a script of steps and plays it on a ``clock`` of which an hour
takes no time.
"""
