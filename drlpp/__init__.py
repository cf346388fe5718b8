"""DRL-PP: the fastest way to train a PyTorch model in a pipeline, learned by running it.

What a user of the library needs stands in ``__init__.pyi``; names are imported when they are first
used, so that ``import drlpp`` costs nothing::

    from drlpp import ClusterSession, PipelineTrainer, Placement
"""

from drlpp.lazily import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
