"""How long does a training stand still when a host is lost for good?"""
