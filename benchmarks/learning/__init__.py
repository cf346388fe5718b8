"""What studies of learning share: tasks, training with late weights in one process, its curves."""
