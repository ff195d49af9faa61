"""What one object means for others: claims of pods, selectors, quotas, admin access, extended resources, volumes."""
