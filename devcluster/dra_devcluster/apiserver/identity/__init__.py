"""Who a client is: tokens, the certificate authority, and kubeconfigs that name both."""
