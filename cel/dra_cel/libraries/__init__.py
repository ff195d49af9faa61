"""The function libraries, a table or two in each file; see ``dra_cel.basics.declarations`` for the form of an entry."""
