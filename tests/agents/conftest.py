"""The fake measurer and its graphs are those of the environments' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
