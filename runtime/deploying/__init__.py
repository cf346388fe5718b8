"""What every worker is given: its stage, its actions, and what a run needs beside them."""
