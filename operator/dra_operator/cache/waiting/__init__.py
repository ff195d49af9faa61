"""What can help pods that wait."""
