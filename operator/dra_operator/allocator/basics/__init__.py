"""What every room uses: sets of devices, names, errors, feature gates, memories that forget, numbers in sentences."""
