"""The fields that several kinds have, and the larger parts of one."""
