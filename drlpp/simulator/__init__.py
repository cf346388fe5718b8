"""The simulator: plays the schedule that the runtime executes, with a profile and a cluster.

It gives what a live measurement gives, and a timeline. Every worker performs its list of actions in
order. What is simpler than on real accelerators:

* **Compute** takes the profile's seconds, divided by the accelerator's speed and, of a pass, by the
  microbatches, and what a pass of a stage takes besides its operators. Where a stage predicts or
  corrects weights, moving them there and back is a part of the pass. Recomputing takes as long as
  the forward pass. Time for the schedule itself is not counted, and every accelerator computes
  at its speed, whatever the others do.
  What a backward in halves takes beyond a whole one, and the part of it for weights, are the same
  for all operators with weights.
* **Messages** take their sender and receiver no time. They queue at the ports on their way
  (:mod:`drlpp.simulator.playing.network`), first come, first served, one at a time. A receive is
  done when its message has arrived: the runtime posts receives ahead. The switch between ports has
  no limit.
* **All-reduces** of gradients go around a ring of the replicas, 2(m − 1) messages of bytes / m over
  the slowest of its links, in the buckets of the runtime, one after the other, each from when all
  replicas have it; so each pays the latency of the whole ring, which the formula of
  :mod:`drlpp.costs.stage_cost` counts once. They overlap with the backward. A bucket passes the
  ports of every link of its ring as one message would, so it queues with messages, and they with
  it. The squared norm for clipping is an all-reduce of 8 bytes of all workers, and holds no ports.
  Where the last backward comes in halves, the buckets leave behind the second one.
* **Copies of weights** that several stages hold are updated when the schedule says so, by messages
  of their size, for which nobody computes; replicas sum their gradients of them while they wait.
* **Memory** is that of :mod:`drlpp.costs.memory` for the most minibatches that a worker has in
  flight in the schedule; messages that wait for their receiver longer than usual are not counted.
"""

from drlpp.simulator.simulated_cluster import SimulatedCluster
from drlpp.simulator.simulation import Simulation, simulate

__all__ = ["simulate", "Simulation", "SimulatedCluster"]
