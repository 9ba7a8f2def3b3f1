import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.rollout.seeds import uniforms

names = st.tuples(st.integers(-(2**63), 2**63), st.integers(0, 10**9), st.text(max_size=8), st.integers(0, 4096))


@settings(deadline=None, max_examples=50)
@given(a=names, b=names, n=st.integers(1, 40), extra=st.integers(0, 40))
def test_a_stream_depends_on_its_name_alone(a, b, n, extra):
    first = uniforms(*a, n)
    assert first.dtype == np.float64
    assert ((first >= 0) & (first < 1)).all()
    assert (uniforms(*a, n + extra)[:n] == first).all()
    assert (a == b) == bool((uniforms(*b, n) == first).all())


def test_names_that_would_join_to_one_string_are_apart():
    assert uniforms(1, 23, "x", 4, 1) != uniforms(12, 3, "x", 4, 1)
    assert uniforms(1, 2, "34", 5, 1) != uniforms(1, 2, "4", 35, 1)


def test_streams_of_one_group_are_uniform_and_uncorrelated():
    group = np.stack([uniforms(0, 7, "p", i, 2000) for i in range(8)])
    assert abs(group.mean() - 0.5) < 4 / np.sqrt(12 * group.size)
    correlation = np.corrcoef(group) - np.eye(8)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(2000)


def test_golden_values_hold_across_platforms_and_versions():
    assert uniforms(0, 0, "prompt", 0, 3).tolist() == [
        0.996456898261654,
        0.34765207142129906,
        0.08738984375277759,
    ]
