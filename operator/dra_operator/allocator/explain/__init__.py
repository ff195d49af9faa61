"""From a problem without solution to a refusal and its nearest fix."""
