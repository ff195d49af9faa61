"""Pods, and the templates of pods in workloads: defaults, rules, what an update may change."""
