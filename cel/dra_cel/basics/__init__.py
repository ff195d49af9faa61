"""What every other room speaks of: types, values, errors, charges, and how functions are declared."""
