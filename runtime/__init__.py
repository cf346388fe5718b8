"""The live pipeline: workers, weight policies, measuring, training, and the oracle.

What stands in ``__init__.pyi`` is imported when it is first used, so that a worker, which imports
its own file in this package, does not import the controller's.
"""

import lazy_loader

from drlpp.renaming import with_old_names

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_old_names(
    __name__,
    _find,
    {
        "Observer": "TrainerCallbacks",
        "kept_profile": "load_or_measure_profile",
        "usual_workers": "default_num_workers",
    },
)
