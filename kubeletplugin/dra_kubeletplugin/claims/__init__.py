"""The kubelet's calls about claims: whose turn it is, what is asked of the driver, and its answers."""
