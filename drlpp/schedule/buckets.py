"""The buckets in which replicas sum their gradients while the backward goes on."""

BUCKET_BYTES = 4 * 1024 * 1024
"""How large a bucket may grow; a larger weight has one of its own."""
