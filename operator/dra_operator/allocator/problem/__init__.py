"""Claims on one node: filters, the domains that they leave, and the ledgers of what a search takes."""
