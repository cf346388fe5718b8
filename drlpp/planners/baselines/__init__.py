"""GPipe's even split and data parallelism; other planners begin with them."""
