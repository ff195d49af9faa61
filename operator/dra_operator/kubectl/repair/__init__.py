"""``kubectl dra doctor``: asks the API server for rights, and carries out repairs. The one room that writes."""
