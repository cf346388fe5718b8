"""How long workers wait for a flush, with whole and with split backwards."""
