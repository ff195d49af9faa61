"""Broken claims and slices: the checks of ``kubectl dra doctor``, a file for each subject. Pure."""
