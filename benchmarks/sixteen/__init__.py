"""How good is what sixteen measurements find, and does it know how good it is?"""
