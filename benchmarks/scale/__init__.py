"""What 1,024 accelerators and more would cost to plan, to simulate and to control."""
