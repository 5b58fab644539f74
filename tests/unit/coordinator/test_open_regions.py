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
            for region in open_regions.in_partition(place[0]):
                region.end_transaction()
                if region.freeze_due(now, MINI):
                    region.freeze(now)
                    open_regions.remove(region)
                else:
                    open_regions.schedule(region, MINI)
        due_regions = [region for region in open_regions.all() if region.freeze_due(now, MINI)]
        for region in open_regions.due(now, MINI):
            due_regions.remove(region)
            region.freeze(now)
            open_regions.remove(region)
        assert due_regions == []
        assert {(region.partition, region.table) for region in open_regions.all()} == {
            at for at, region in regions.items() if region.active.rows
        }
        assert bool(open_regions) == bool(open_regions.all())
