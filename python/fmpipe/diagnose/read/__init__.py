"""Reading logs: the names of metrics, and metrics in printed lines."""
