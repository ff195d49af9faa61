"""The ports of a pod: on the machine or in a network of its own, and how clients reach them."""
