"""What tests of ``drlpp plan`` give it: a cluster's file, and links by numbers."""

CLUSTER = """\
kind: cluster
version: 1
hosts:
  - {name: fast, count: 2, accelerators: 2, device: cuda, memory_bytes: 16000000000}
  - {name: slow, accelerators: 1, speed: 0.5, network: {bandwidth_bytes_per_second: 1.0e8}}
within_host: {bandwidth_bytes_per_second: 1.2e10, latency_seconds: 5.0e-6}
between_hosts: {bandwidth_bytes_per_second: 1.25e9, latency_seconds: 5.0e-5}
"""

LINKS = ("--workers", 2, "--bandwidth", 10)
