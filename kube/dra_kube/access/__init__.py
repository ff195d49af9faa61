"""Where the API server is, and as whom it is spoken to: connection, credentials, impersonation, TLS."""
