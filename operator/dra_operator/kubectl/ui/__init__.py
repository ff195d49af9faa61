"""``kubectl dra ui``: a page on loopback, with the viewer's own credentials and nothing installed in the cluster.

``view`` turns one read of the cluster into what the page shows, with the rows of ``lines``; ``server``
reads again while a page is open, and refuses those who do not have the address. The page is plain files in ``page``.
"""
