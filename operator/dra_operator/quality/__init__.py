"""How well a cluster is filled: a trace of pods is placed, one pod at a time, by one policy or another.

The rules of a run are those of a published study (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), so that our
figures can be compared with its figures: docs/quality.md.
"""
