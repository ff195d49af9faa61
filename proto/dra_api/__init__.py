"""The objects of ``resource.k8s.io``: types, quantities, defaulting, validation, conversion.

Pure: no I/O, no clock, no client. The structs are in ``resource`` (the kinds of the group), ``core`` (Pod, Node) and
``meta``. Errors; each module shows its own::

    QuantityError, VersionError, DecodeError, ConversionError, GateError   (all ValueError)
    ClaimReferenceError and its children, in ``references``
"""

VERSION = "0.1.0"
"""The version of the distribution: of the wheel, of every command (``--version``) and of the image's tag."""
