"""What each command that lists things answers: columns over facts. Pure."""
