"""One pass of a stage: the call, a backward in two halves, element types, random numbers."""
