"""``kubectl dra ui``: a page on loopback, with the viewer's own credentials and nothing installed in the cluster.

``view`` turns one read of the cluster into what the page shows, ``feed`` reads again while a page is open, ``guard``
refuses those who do not have the address, ``server`` puts them together. The page itself is plain files in ``page``.
"""
