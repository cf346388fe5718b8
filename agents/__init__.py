"""Agents that place models: guided by a simulator that measurements correct, drl-pp's, your own.

Names are imported when they are first used: drl-pp's agent takes seconds to import.
"""

from drlpp.lazily import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
