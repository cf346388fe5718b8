"""Models of today in four stages, against plain PyTorch and the reference; see README.md."""
