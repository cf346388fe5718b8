"""``drlpp race``: time to loss of placements and plain PyTorch, on the user's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import capture
from drlpp.cli.arguments import NAMED_POLICIES, Race
from drlpp.cli.command_line import console
from drlpp.cli.layouts import is_file, layout_contenders
from drlpp.cli.learning.live_run import live_run, run_record
from drlpp.cli.settings import model_reference, read_options
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.io.progress_lines import shown
from drlpp.placement.placement_file import read_placement
from drlpp.planners import Space
from drlpp.racing.contenders import Contender, compiled_as_plain
from drlpp.racing.prospects import with_a_chance
from drlpp.racing.rivals import Grounds, usual_candidates, with_policy, without_equals
from drlpp.racing.to_loss import FILE_NAME, Course, RaceData, race_to_loss
from drlpp.racing.training_race import RaceEnd, TrainingRace
from drlpp.racing.winner import keep_winner
from drlpp.report.tables import race_table
from drlpp.runtime import ClusterSession, load_or_measure_profile
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.per_stage import refuse_lists
from drlpp.schedule.weight_policies import PIPEOPTIM, SYNC, WEIGHT_POLICIES
from drlpp.specs.cluster import Cluster


def race(given: Race) -> dict[str, Any]:
    """Run ``drlpp race``."""
    compare, seed = given.compare, given.run.seed
    options = read_options(given.method_option, "method", "accumulate=4")
    method, methods = named_methods(given.policy, options)
    refuse_lists(method.in_flight_per_link, method.recompute)
    spec = given.optimizer.spec()
    captured = capture(model_reference(given.model, given.model_option), seed=seed)
    data = RaceData(captured, given.race.data or "digits", seed, console.print)
    folder = given.run.folder("races", given.model)
    of_session = {**given.workers.of_session(folder), "method": method, "optimizer": spec}
    layouts = layout_contenders(compare, captured, of_session["workers"], method)
    of_a_file = {"graph_fingerprint", "stages", "method", "found_by"}
    settings = {
        "data": data.name,
        "placements": [
            read_placement(text).model_dump(mode="json", include=of_a_file)
            for text in filter(is_file, compare)
        ],
    }
    # What a race began without, it may continue with.
    if methods:
        settings["policies"] = [method.model_dump() for method in methods]
    if by_modules := [layout for text, layout in layouts.items() if not is_file(text)]:
        settings["layouts"] = [layout.model_dump(mode="json") for layout in by_modules]
    with live_run("race", given, captured, folder, of_session, settings) as session:
        with shown(console, "profiling operators and links"):
            known = load_or_measure_profile(session, folder)
        named = list(layouts.values())
        rules = given.race.options | {"rates": given.rates, "finals": given.repetitions}
        run_and_report(session, *known, named, data, folder, rules, methods=methods)
    return run_record(folder)


def named_methods(
    policies: Sequence[str], options: Mapping[str, object]
) -> tuple[Method, list[Method]]:
    """Return the common method, and that of each policy that is named.

    Options that belong to one of these policies alone go to that one.
    """
    own: dict[str, dict[str, object]] = {}
    for policy in dict.fromkeys(policies):
        if policy in (SYNC.name, PIPEOPTIM.name):
            raise InvalidInput(
                f"policy {policy} takes part in every race; leave out --policy {policy}, which is "
                f"for others ({', '.join(NAMED_POLICIES)})"
            )
        facts = WEIGHT_POLICIES.get(policy)
        names = facts.own_options if facts else ()
        own[policy] = {name: options[name] for name in names if name in options}
    taken = {name for given in own.values() for name in given}
    common = choose_method(None, {key: options[key] for key in options.keys() - taken})
    return common, [choose_method(policy, given, common) for policy, given in own.items()]


def run_and_report(
    session: ClusterSession,
    profile: Profile,
    cluster: Cluster,
    named: list[Contender],
    data: RaceData,
    folder: Path,
    options: dict[str, Any],
    *,
    methods: Sequence[Method] = (),
) -> tuple[Course, RaceEnd]:
    """Run a race, or continue it; print its table and write the winner's training.

    Args:
        session, profile, cluster: the workers, and what is known of the model and of them.
        named: what takes part besides what a user has anyway.
        data: to train and evaluate on.
        folder: for everything found.
        options: of :func:`~drlpp.racing.to_loss.race_to_loss`: what wins, and how it is run.
        methods: of weight policies that take part too.
    """
    with shown(console, "choosing what takes part") as tell:
        grounds = Grounds(session, profile, cluster, Space(session.method))
        candidates = _candidates(grounds, named, folder, methods)
        course, end = race_to_loss(session, candidates, data, folder, on_step=tell, **options)
    console.print(race_table(course.race, end).terminal)
    for line in end.lines():
        console.print(line)
    if end.winner is not None:
        _, how = keep_winner(course, end, cluster)
        console.print(how)
    return course, end


def _candidates(
    grounds: Grounds,
    named: list[Contender],
    folder: Path,
    methods: Sequence[Method],
) -> list[Contender]:
    """Return what takes part: what has begun, or the usual candidates; then what is named."""
    path = folder / FILE_NAME
    # Which threads suit plain PyTorch best, and how many workers data parallelism, is measured, and
    # may come out otherwise again.
    begun = read_document(path, TrainingRace) if path.exists() else None
    others = [one for method in methods for one in with_policy(grounds, method)]
    if begun:
        known = list(begun.candidates)
    else:
        known, line = with_a_chance(grounds, usual_candidates(grounds), [*others, *named])
        if line:
            console.print(line)
    found = compiled_as_plain([*known, *others, *named])
    known = found[: len(known)]
    keys = {one.key for one in known}
    return known + [one for one in without_equals(found) if one.key not in keys]
