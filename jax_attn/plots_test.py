import numpy as np
import pytest

from jax_attn import show_alignments, show_heatmaps
from jax_attn.plots import save

EXAMPLES = [
    (["go", "."], ["va", "!"], np.eye(2)),
    (["i'm", "ok", "."], ["ça", "va", "."], np.full((3, 3), 1 / 3)),
    (["i", "won", "!"], ["j'ai", "gagné", "!"], np.eye(3)),
]


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_are_written_in_the_format_of_the_suffix(tmp_path, suffix, start):
    save(show_heatmaps(np.random.default_rng(0).random((1, 2, 3, 4)), "keys", "queries"), tmp_path / f"a.{suffix}")
    save(show_alignments(EXAMPLES), tmp_path / f"b.{suffix}")
    for name in "ab":
        assert (tmp_path / f"{name}.{suffix}").read_bytes().startswith(start)


def test_heatmaps_stand_in_a_grid_with_one_colour_scale_and_labels_at_the_edges():
    matrices = np.arange(24.0).reshape(2, 1, 3, 4)
    *axes, _ = show_heatmaps(matrices, "keys", "queries", titles=["head"]).axes
    assert [axis.images[0].get_array().tolist() for axis in axes] == matrices[:, 0].tolist()
    assert {axis.images[0].get_clim() for axis in axes} == {(0, 23)}
    assert [(axis.get_xlabel(), axis.get_ylabel(), axis.get_title()) for axis in axes] == [
        ("", "queries", "head"),
        ("keys", "queries", "head"),
    ]


def test_alignments_have_the_words_on_both_axes_and_hide_what_is_left_over():
    axes = show_alignments(EXAMPLES).axes[:4]
    for axis, (source, target, weights) in zip(axes, EXAMPLES, strict=False):
        assert [label.get_text() for label in axis.get_xticklabels()] == source
        assert [label.get_text() for label in axis.get_yticklabels()] == target
        np.testing.assert_array_equal(axis.images[0].get_array(), weights)
        assert axis.images[0].get_clim() == (0, 1)
    assert not axes[3].axison


def test_wrong_shapes_are_told():
    with pytest.raises(ValueError, match=r"matrices must be \[rows, columns, Q, K\]; got \[3, 4\]"):
        show_heatmaps(np.ones((3, 4)), "keys", "queries")
    with pytest.raises(ValueError, match="titles must be 2, one a column; got 1"):
        show_heatmaps(np.ones((1, 2, 3, 4)), "keys", "queries", titles=["one"])
    with pytest.raises(ValueError, match=r"weights must be \[2, 2\]; got \[2, 3\]"):
        show_alignments([(["a", "b"], ["c", "d"], np.ones((2, 3)))])
    with pytest.raises(ValueError, match="examples must not be empty"):
        show_alignments([])
