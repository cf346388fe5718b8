"""The main job: learn a placement on live workers, race it against its rivals, export the best.

``python train_agent.py alexnet --workers 4 --out runs/alexnet``; see ``--help``. The same
program as ``drlpp learn``.
"""

from drlpp.cli.entry import begin

if __name__ == "__main__":
    begin("drlpp.cli.main", "train_agent.py", "train_agent")
