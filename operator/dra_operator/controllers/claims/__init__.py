"""The life of claims: made from templates, kept, released, deleted."""
