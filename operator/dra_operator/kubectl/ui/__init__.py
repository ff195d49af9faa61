"""``kubectl dra ui``: a page on loopback, with the viewer's own credentials and nothing installed in the cluster.

``view`` turns one read of the cluster into the contents of the page, with the rows of ``lines``. ``server`` reads again
while a page is open, and refuses clients without the address. The page is plain files in ``page``.
"""
