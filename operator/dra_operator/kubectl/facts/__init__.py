"""From what was observed to what tables show. Pure."""
