"""``kubectl dra fit --serve``: answers whether pods would fit, by HTTP and gRPC, to queue managers and autoscalers."""
