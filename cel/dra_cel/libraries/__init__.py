"""The function libraries, one table each; see ``dra_cel.basics.declarations`` for the form of an entry."""
