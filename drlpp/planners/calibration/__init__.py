"""Planning with a model of the cluster that measurements correct.

The guided agent imports it.
"""
