"""Questions with a command and an answer: a folder a study, and the files here, which all share.

A study imports the files here, and :mod:`benchmarks.emulated_cluster`, but no other study. Tests
import all of them; what is installed imports none.
"""

from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"
"""Of eight models of the zoo, at CPU sizes; ``README.md`` there says how they were taken."""
