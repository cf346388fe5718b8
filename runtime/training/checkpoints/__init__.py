"""What a training keeps, and how it is read again."""
