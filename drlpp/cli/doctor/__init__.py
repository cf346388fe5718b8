"""What ``drlpp doctor`` looks at, a check each."""
