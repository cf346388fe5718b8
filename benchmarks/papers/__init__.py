"""The papers' tables of time to accuracy, throughput and memory, done again at this size."""
