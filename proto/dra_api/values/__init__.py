"""Values with an order or an equality of their own: quantities, versions, times."""
