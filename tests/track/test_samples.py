from track_helpers import group_of

from assay.track.rollouts import rows_of
from assay.track.samples import good_and_bad


def test_best_and_worst_come_from_one_mixed_group():
    batch = [
        group_of([("1", 0.0), ("2", 0.0)], "fail", 0),
        group_of([("3", 0.0), ("4", 1.0), ("5", 1.0)], "first", 1),
        group_of([("6", 0.5), ("7", 0.2), ("8", None)], "second", 2),
    ]
    assert [r.completion for r in good_and_bad(rows_of(2, batch))] == ["4", "3"]
    assert [r.completion for r in good_and_bad(rows_of(3, batch))] == ["6", "7"]
    assert good_and_bad(rows_of(3, batch[::-1])) == good_and_bad(rows_of(3, batch))


def test_without_a_mixed_group():
    alike = [group_of([("1", 0.0), ("2", 0.0)], "a", 0), group_of([("3", 1.0)], "b", 1)]
    assert [r.completion for r in good_and_bad(rows_of(1, alike))] == ["3", "1"]
    assert [r.completion for r in good_and_bad(rows_of(1, alike[:1]))] == ["1"]


def test_rows_without_reward_are_never_chosen():
    assert good_and_bad(rows_of(1, [group_of([("1", None), ("2", None)])])) == []
    assert good_and_bad([]) == []
