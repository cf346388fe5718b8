"""What tests share: helpers that several of their rooms import."""
