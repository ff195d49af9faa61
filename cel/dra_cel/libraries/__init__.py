"""The function libraries, one table each; see ``dra_cel.declarations`` for the form of an entry."""
