"""An agent that does not end before its budget."""

ENDLESS = "kind: guided-hyperparameters\nversion: 1\ngain: 0.0\ndraws: 4\nevaluations: 64\n"
