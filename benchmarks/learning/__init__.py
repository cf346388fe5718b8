"""What studies share: graphs, tasks, training with late weights in one process, its curves."""
