"""What searches are made of: moves, random placements, orders, the best cuts of an order."""
