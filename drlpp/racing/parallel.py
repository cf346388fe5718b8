"""Training to a loss by torch's own data parallelism, on the workers, with pauses for others."""

from __future__ import annotations

import time
from itertools import islice

from drlpp.racing.plain import ModuleLearner, held_out_loss, initial_module
from drlpp.runtime.ipc.protocol import ParallelTraining, ParallelWork
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint
from drlpp.runtime.training.training_data import LoaderState
from drlpp.runtime.training.training_plan import Stint


class ParallelLearner(ModuleLearner):
    """Does so with torch's own data parallelism.

    Every rank has the whole minibatches of a stint before that begins, which counts if it takes
    longer than training; groups, modules and optimizers are built anew for each, and one minibatch
    warms up, which does not.
    """

    def train_until(self, minibatches: int) -> Stint:
        """Train until so many minibatches are done in all, keep a checkpoint, and evaluate.

        They are of one epoch.

        Raises:
            RunFailure: it cannot go further.
        """
        one, task, first = self.one, self.session.captured.task_with_loss, 0
        assert one.way != "plain"
        states, data_state = (), self._data_state
        if self._checkpoint.exists():
            saved = read_checkpoint(self._checkpoint)
            first, states, data_state = saved["done"], saved["states"], LoaderState(*saved["data"])
        if first >= minibatches:
            # It was killed before the race took note of the checkpoint.
            return Stint(first, first, 0.0, None, None)
        self.data.load_state(data_state)
        epoch, position = divmod(first, self.data.minibatches)
        coming = self.data.minibatches_here(epoch + 1, position)
        begin = time.perf_counter()
        read = list(islice(coming, minibatches - first))
        loading = time.perf_counter() - begin
        ends = minibatches % self.data.minibatches == 0
        if ends:
            next(coming, None)
        data_state = self.data.state()
        coming.close()
        training = ParallelTraining(one.way, one.method, self.optimizer, self.seed, one.every)
        work = ParallelWork(task, [(m.inputs, m.targets) for m in read], ends, states)
        found = self.session.train_parallel(training, one.processes, work)
        kept = {
            "model": dict(found.model),
            "states": list(found.states),
            "data": tuple(data_state),
            "done": minibatches,
        }
        write_checkpoint(self._checkpoint, kept)
        module = initial_module(self.session.captured)
        module.load_state_dict(found.model)
        loss = held_out_loss(module, task, self.data, one.method)
        return Stint(first, minibatches, max(found.seconds, loading), loss, None)
