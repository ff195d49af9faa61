"""What several controllers use: settings, log lines, conditions and events."""
