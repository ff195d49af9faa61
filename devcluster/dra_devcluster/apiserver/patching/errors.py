"""Why a patch was not applied."""


class PatchRefused(ValueError):
    """The patch is malformed or does not fit the document; the text is meant for the client."""
