"""What an expression may refer to: the environments of device selectors and of admission policies."""
