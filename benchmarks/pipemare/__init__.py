"""PipeMare's theory, calculated."""
