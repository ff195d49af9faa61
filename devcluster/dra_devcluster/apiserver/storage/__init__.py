"""Objects as they are stored: the store, metadata, shapes of other versions, and what a selector means."""
