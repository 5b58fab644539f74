"""The regions with rows: what is due is what looking at every region would find."""

from __future__ import annotations

from hypothesis import given, strategies as st

from starrocks_txn_sink.coordinator.model import OpenRegions, Region, RegionRows

MINI = 0.1
PLACES = st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))
STEPS = st.lists(st.tuples(st.sampled_from(["write", "end", "look"]), PLACES, st.floats(0, 0.2)), max_size=60)


@given(STEPS)
def test_regions_are_due_when_looking_at_each_of_them_would_say_so(
    steps: list[tuple[str, tuple[str, str], float]],
) -> None:
    open_regions, regions, now = OpenRegions(), dict[tuple[str, str], Region](), 0.0
    for step, place, later in steps:
        now += later
        region = regions.setdefault(place, Region(*place))
        if step == "write":
            region.write(RegionRows(*place, memoryview(b"row"), 1))
            open_regions.add(region)
        elif step == "end":
            for each in open_regions.in_partition(place[0]):
                each.end_transaction()
                if each.freeze_due(now, MINI):
                    each.freeze(now)
                    open_regions.remove(each)
                else:
                    open_regions.schedule(each, MINI)
        wanted = [each for each in open_regions.all() if each.freeze_due(now, MINI)]
        for each in open_regions.due(now, MINI):
            wanted.remove(each)
            each.freeze(now)
            open_regions.remove(each)
        assert wanted == []
        assert {(each.partition, each.table) for each in open_regions.all()} == {
            at for at, each in regions.items() if each.active.rows
        }
        assert bool(open_regions) == bool(open_regions.all())
