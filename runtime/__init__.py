"""The live pipeline: workers, weight policies, measuring, training, and the oracle.

What stands in ``__init__.pyi`` is imported when it is first used, so that a worker, which imports
its own file in this package, does not import the controller's.
"""

from drlpp.lazily import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
