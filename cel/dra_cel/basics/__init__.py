"""The words of all other folders: types, values, errors, charges, and declarations of functions."""
