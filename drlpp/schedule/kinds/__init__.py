"""The kinds of schedules: in which order each lets a worker compute.

What a kind can do is in its :class:`~drlpp.schedule.kinds.kind.ScheduleKind`. All kinds are listed
in :mod:`drlpp.schedule.kinds.registry`, and :mod:`drlpp.schedule.lowering` adds messages and
recomputation to any of them. This folder imports actions, pipelines and errors only; everything
above may import it.
"""
