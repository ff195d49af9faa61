"""Two ways to evaluate a checked tree: a stack machine that decides, and selectors as one Python expression."""
