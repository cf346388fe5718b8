from tests.support.one_thread import _one_thread  # noqa: F401
