"""The seats around a driver: kubelet, API server, the driver as a process, and the bench that has them all."""
