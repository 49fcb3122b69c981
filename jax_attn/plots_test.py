import re
import struct
import subprocess
import sys
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from jax_attn import show_alignments, show_heatmaps
from jax_attn.plots import CELL, save

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
    assert {tick % 1 for axis in axes for tick in [*axis.get_xticks(), *axis.get_yticks()]} == {0}
    assert [(axis.get_xlabel(), axis.get_ylabel(), axis.get_title()) for axis in axes] == [
        ("", "queries", "head"),
        ("keys", "queries", "head"),
    ]


@pytest.mark.parametrize("blank", [np.nan, -np.inf])
def test_a_heatmap_with_a_cell_that_is_not_finite_keeps_its_scale(blank):
    matrices = np.arange(8.0).reshape(1, 2, 2, 2)
    matrices[0, 0, 0, 0] = blank
    figure = show_heatmaps(matrices, "keys", "queries")
    assert {axis.images[0].get_clim() for axis in figure.axes[:2]} == {(1, 7)}
    assert shown_size(figure)


def test_alignments_have_the_words_on_both_axes():
    *axes, _ = show_alignments(EXAMPLES).axes
    assert len(axes) == 3
    for axis, (source, target, weights) in zip(axes, EXAMPLES, strict=True):
        assert [label.get_text() for label in axis.get_xticklabels()] == source
        assert [label.get_text() for label in axis.get_yticklabels()] == target
        np.testing.assert_array_equal(axis.images[0].get_array(), weights)
        assert axis.images[0].get_clim() == (0, 1)
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("source", "translation")


@pytest.mark.parametrize("alignments", [False, True])
def test_a_notebook_shows_a_figure(alignments):
    figure = show_alignments(EXAMPLES) if alignments else show_heatmaps(np.ones((1, 1, 2, 3)), "keys", "queries")
    shown = shown_size(figure)
    inches = figure.get_tightbbox().padded(0.1)
    np.testing.assert_allclose(shown, [figure.dpi * inches.width, figure.dpi * inches.height], atol=3)


def shown_size(figure):
    """Width and height of the picture that a notebook shows, from the PNG's header."""
    return struct.unpack(">II", figure._repr_png_()[16:24])


def test_no_label_is_cut_off_whatever_the_callers_size_is():
    title = "a title far wider than the figure"
    figure = show_heatmaps(np.ones((1, 1, 2, 3)), "the name of the keys", "queries", [title], figsize=(1.5, 1.2))
    words = figure.axes[0].title.get_window_extent().width / figure.dpi
    assert words > 1.5
    assert shown_size(figure)[0] >= figure.dpi * words


def test_save_writes_200_dots_an_inch(tmp_path):
    save(show_heatmaps(np.ones((1, 1, 2, 3)), "keys", "queries"), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert round(image.info["dpi"][0]) == 200


def test_links_are_framed_in_their_cells_and_titles_stand_above():
    sure, possible = [{(0, 0)}, {(1, 0), (2, 2)}, set()], [set(), {(0, 1)}, set()]
    figure = show_alignments(EXAMPLES, titles=["a", "b", "c"], links={"sure": sure, "possible": possible})
    *axes, colors = figure.axes
    for axis, title, *cells in zip(axes, "abc", sure, possible, strict=True):
        assert axis.get_title() == title
        framed = [(round(x), round(y)) for x, y in (patch.get_center() for patch in axis.patches)]
        assert framed == [*cells[0], *cells[1]]
    assert len({str(patch.get_linestyle()) for patch in axes[1].patches}) == 2
    assert [text.get_text() for text in colors.get_legend().get_texts()] == ["sure", "possible"]
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_wrong_shapes_raise():
    with pytest.raises(ValueError, match=r"matrices must be \[rows, columns, Q, K\]; got \[3, 4\]"):
        show_heatmaps(np.ones((3, 4)), "keys", "queries")
    with pytest.raises(ValueError, match="titles must be 2, one a column; got 1"):
        show_heatmaps(np.ones((1, 2, 3, 4)), "keys", "queries", titles=["one"])
    with pytest.raises(ValueError, match=r"weights must be \[2, 2\]; got \[2, 3\]"):
        show_alignments([(["a", "b"], ["c", "d"], np.ones((2, 3)))])
    with pytest.raises(ValueError, match="titles must be 3, one a heatmap; got 1"):
        show_alignments(EXAMPLES, titles=["a"])
    with pytest.raises(ValueError, match="gold must be 3, one a heatmap; got 2"):
        show_alignments(EXAMPLES, links={"gold": [set(), set()]})
    with pytest.raises(ValueError, match=r"gold must be within \[2, 2\]; got \(2, 0\)"):
        show_alignments(EXAMPLES, links={"gold": [{(2, 0)}, set(), set()]})
    with pytest.raises(ValueError, match="links must have at most 3 names; got a, b, c, d"):
        show_alignments(EXAMPLES, links={name: [set()] * 3 for name in "abcd"})
    with pytest.raises(ValueError, match="examples must not be empty"):
        show_alignments([])


@pytest.mark.parametrize("long", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_cells_are_of_one_size_and_nothing_overlaps_at_any_length(long):
    words = [f"Donaudampfschifffahrt{i}" for i in range(long)]
    figure = show_alignments([(words, words, np.eye(long)), (["go"], ["va"], np.eye(1)), *EXAMPLES])
    FigureCanvasAgg(figure)
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    whole = figure.bbox.padded(1)
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 for box in boxes[:-1])
    for axis in figure.axes[:-1]:
        box, shape = axis.get_window_extent(), axis.images[0].get_array().shape
        np.testing.assert_allclose([box.height / shape[0], box.width / shape[1]], CELL * figure.dpi)


def test_a_huge_picture_is_written_in_fewer_dots(tmp_path):
    figure = Figure(figsize=(900, 2))
    save(figure, tmp_path / "wide.png")
    assert (tmp_path / "wide.png").exists()


def test_a_words_dollar_signs_are_no_formula(tmp_path):
    save(show_alignments([(["$a_{", "$x$"], ["$", "$$"], np.eye(2))]), tmp_path / "a.png")


def test_characters_that_no_font_has_give_a_warning_and_stay_text_in_an_svg(tmp_path):
    character = "\U0010fffd"  # for private use: no font has it
    figure = show_alignments([(["a"], [f"x{character}y"], np.eye(1))])
    with pytest.warns(
        UserWarning, match=f"no installed font has {character}: boxes stand for them in .*a.png"
    ) as warned:
        save(figure, tmp_path / "a.png")
    assert len(warned) == 1
    for name in ("a.svg", "b.SVG"):
        save(figure, tmp_path / name)
        assert f"x{character}y" in (tmp_path / name).read_text(encoding="utf-8")


def test_characters_that_an_svg_must_not_hold_are_replaced(tmp_path):
    words = ["a\uffff", "b\ufffe", "c\x00", "d\x1b[1m", "e\ud800"]
    save(show_alignments([(words, ["f"], np.ones((1, 5)))]), tmp_path / "a.svg")
    text = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())  # no well-formed XML is an error
    assert {f"{letter}\ufffd" for letter in "abcde"} <= set(re.findall(r"[a-e]\ufffd", text))


def test_another_font_draws_the_characters_that_the_first_does_not_have(tmp_path):
    circled = "\u24b6"  # Matplotlib's STIX has it, and its DejaVu Sans has not
    save(show_alignments([([circled], ["a"], np.eye(1))]), tmp_path / "a.png")  # a warning would be an error
    with pytest.warns(UserWarning, match=circled):
        save(Figure(figsize=(1, 1)).text(0, 0, circled).figure, tmp_path / "b.png")  # in the user's fonts alone


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None  # an import of it raises ModuleNotFoundError
import jax_attn, jax_attn.plots
from jax_attn import *
try:
    jax_attn.show_heatmaps([[[[1.0]]]], "keys", "queries")
except ImportError as error:
    print(error)
"""


def test_the_library_works_without_matplotlib_and_a_picture_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_MATPLOTLIB], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("pictures need Matplotlib; run: pip install 'jax-attn[plots]'\n", "")
