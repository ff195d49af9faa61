"""Ends pods on tainted devices, and says in DeviceTaintRules what they do."""
