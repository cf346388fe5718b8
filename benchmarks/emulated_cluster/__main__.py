"""``python -m benchmarks.emulated_cluster``."""

from benchmarks.emulated_cluster.commands import app
from drlpp.cli.command_line import run_program

run_program(app, "emulated_cluster")
