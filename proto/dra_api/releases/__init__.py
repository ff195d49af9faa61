"""The releases of Kubernetes that are known here, and what each made of the feature gates."""
