"""``kubectl dra fit --serve``: answers whether pods would fit, by HTTP, to queue managers and autoscalers."""
