"""The kinds of schedules: each file says in which order one kind lets a worker compute.

What a kind can do is in its :class:`~drlpp.schedules.kind.ScheduleKind`. All kinds are listed in
:mod:`drlpp.schedules.registry`, and :mod:`drlpp.lowering` adds messages and recomputation to any of
them. This folder imports actions, pipelines and errors only; everything above may import it.
"""
