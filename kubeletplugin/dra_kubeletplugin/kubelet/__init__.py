"""The gRPC servers that the kubelet finds: sockets, registration, health, and what surrounds each call."""
