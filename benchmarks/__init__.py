"""Questions with a command and an answer: a file or a folder a study, on one harness.

Tests import all of them; what is installed imports none.
"""

from pathlib import Path

PROFILES = Path(__file__).parent / "profiles"
"""Of eight models of the zoo, at CPU sizes; ``README.md`` there says how they were taken."""
