"""The page in a browser: what it shows, how keys move through it, and that it fits a phone."""

import dataclasses
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from train.translating.maps import AttentionMap
from train.translating.page.page import Side, as_page, compare, save
from train.translating.translation import NOTHING, Hypothesis, Translation

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def hypothesis(words: str, source: str, seed: int, attends: bool = True) -> Hypothesis:
    tokens, rng = words.split(), np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(len(source.split()) + 1, 0.1), len(tokens) + 1) if attends else None
    logs = -rng.random(len(tokens) + 1)
    spans = tuple(range(i, i + 1) for i in range(len(tokens) + 1))
    ids = (*range(4, 4 + len(tokens)), 2)
    return Hypothesis(ids, tuple(tokens), float(logs.sum()), logs, weights, words, spans, (*tokens, "<eos>"))


def steps(hypothesis: Hypothesis) -> list[list[tuple[str, float]]]:
    """List the chosen token second, and leave it out at the last step."""
    chosen = zip(hypothesis.tokens, hypothesis.token_scores.tolist(), strict=True)
    found = [[("autre", -0.01), (token, log), ("rien", -math.inf)] for token, log in chosen]
    return [*found[:-1], [("autre", -0.01)]] if found else []


def one_map(translation: Translation, hypothesis: Hypothesis) -> list[AttentionMap]:
    """Return the map of a recurrent model."""
    if hypothesis.weights is None:
        return []
    weights = hypothesis.weights[None, None]
    return [AttentionMap("cross", hypothesis.tokens, (*translation.source, "<eos>"), weights, 0)]


def side_of(name: str, translations: list[Translation]) -> Side:
    explained = [[steps(h) for h in t.hypotheses] for t in translations]
    return Side(name, translations, explained, [[one_map(t, h) for h in t.hypotheses] for t in translations])


def side(name: str, seed: int, attends: bool = True) -> Side:
    pairs = {
        "the cat sleeps .": ["le chat dort .", "un chat dort"],
        'a </script><b>x</b> {{ y }} & "z" \'': ["<i>龍</i> Donaudampfschifffahrtsgesellschaftskapitänspatents"],
    }
    translations = [
        Translation(
            tuple(source.split()),
            tuple(hypothesis(t, source, seed + i, attends) for i, t in enumerate(targets)),
            source,
        )
        for source, targets in pairs.items()
    ]
    translations.append(Translation(("nothing",), (NOTHING,), "nothing"))
    return side_of(name, translations)


def transformer_side() -> tuple[Side, list[AttentionMap]]:
    """Return a side whose first hypothesis has layers and heads of three kinds, and these."""
    rng, one = np.random.default_rng(1), side("one", 0)
    translation, (_, *others) = one.translations[0], one.maps[0]
    source, target = (*translation.source, "<eos>"), translation.best.tokens

    def draw(kind: str, rows: tuple[str, ...], columns: tuple[str, ...], layers: int) -> AttentionMap:
        weights = rng.dirichlet(np.full(len(columns), 0.3), (layers, 2, len(rows)))
        return AttentionMap(kind, rows, columns, weights, 1)

    read = ("<bos>", *target[:-1])
    maps = [draw("cross", target, source, 3), draw("source", source, source, 2), draw("target", target, read, 3)]
    return dataclasses.replace(one, maps=[[maps, *others], *one.maps[1:]]), maps


class Page(HTMLParser):
    """Collect the addresses that a page fetches, and its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetching: list[str | None] = []
        self.data = ""
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetching += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.inside = ("id", "data") in attributes

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_the_page_holds_everything_and_fetches_nothing():
    one = side("one", 0)
    page = as_page([one, side("two", 9)])
    parsed = Page(page)
    assert parsed.fetching == []
    assert "http" not in page
    assert "<b>x</b>" not in page  # no word becomes a tag
    data = json.loads(parsed.data)
    assert [s["name"] for s in data] == ["one", "two"]
    shown = data[0]["sentences"][1]
    assert shown["source"] == [*one.translations[1].source, "<eos>"]
    assert shown["hypotheses"][0]["tokens"] == [*one.translations[1].target, "<eos>"]
    (shown_map,) = shown["hypotheses"][0]["maps"]
    np.testing.assert_allclose(shown_map["weights"], 1e4 * one.translations[1].weights[None, None], atol=1)
    assert "@media (pointer: coarse) { .touch { display: inline; } .pointer { display: none; } }" in page
    assert 'class="touch">Tap' in page


def test_sides_must_have_the_same_sentences():
    one = side("one", 0)
    with pytest.raises(ValueError, match=r"as many translations each; got \[3, 2\]"):
        as_page([one, side_of("two", one.translations[:2])])
    with pytest.raises(ValueError, match=r"at least one, .* got \[\]"):
        as_page([])


def test_a_comparison_names_the_first_different_word_or_the_largest_difference():
    one = side("one", 0).translations[0]
    near = dataclasses.replace(one.best, token_scores=one.best.token_scores + 0.5, weights=one.best.weights + 0.25)
    same = "the same translation as the first; log p differ by at most "
    assert compare(one, one) == f"{same}0.0e+00, attention weights by at most 0.0e+00"
    assert compare(one, Translation(one.source, (near,))) == f"{same}5.0e-01, attention weights by at most 2.5e-01"
    other = Translation(one.source, one.hypotheses[1:])
    assert compare(one, other) == "another translation than the first, from word 1 on"


def test_what_utf_8_cannot_hold_is_written_escaped(tmp_path):
    path = tmp_path / "a.html"
    save("caf\udcff", path)
    assert path.read_text() == r"caf\udcff"


def browse(tmp_path: Path, page: str, script: str, width: int = 1280, dark: bool = False) -> dict:
    """Run a script after the page's own, in a browser of this width. Return what it puts into `say`."""
    probe = f"const say = {{}}; try {{ {script} }} catch (error) {{ say.error = String(error); }}"
    probe += "document.body.innerHTML = '<pre></pre>'; document.querySelector('pre').textContent = JSON.stringify(say);"
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"<script>{probe}</script></body>"), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, encoding="utf-8")
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert "error" not in said, said["error"]
    return said


HELPERS = """
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const words = name => all('.side:first-child .' + name + ' .word');
const key = name =>
  document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true, cancelable: true}));
const shares = name => words(name).map(word => word.style.getPropertyValue('--share'));
const at = () => document.getElementById('at').textContent;
const spoken = () => document.querySelector('.spoken').textContent;
const click = id => document.getElementById(id).click();
"""


@in_browser
def test_words_are_reached_by_keys_and_show_what_they_looked_at(tmp_path):
    one = side("one", 0)
    script = """
    say.sides = all('.side h2').map(h => h.textContent);
    say.start = [at(), shares('source'), words('target').filter(w => w.tabIndex === 0).length];
    words('target')[0].focus(); key('ArrowRight'); key('ArrowRight');
    say.third = [at(), shares('source'), document.activeElement.firstChild.textContent, spoken()];
    say.both = all('.side:last-child .target .word[aria-selected=true]').map(w => w.firstChild.textContent);
    say.outline = getComputedStyle(document.activeElement).outlineStyle;
    key('ArrowUp'); key('End'); key('ArrowLeft');
    say.source = [document.activeElement.firstChild.textContent, shares('target'), spoken()];
    key('ArrowDown'); key('Home');
    say.back = [at(), document.activeElement.firstChild.textContent];
    words('target')[1].dispatchEvent(new MouseEvent('mouseenter'));
    say.hover = at();
    """
    said = browse(tmp_path, as_page([one, side("two", 9)]), HELPERS + script)
    weights = one.translations[0].weights

    def shown(shares: list[str]) -> list[float]:
        return [float(share.rstrip("%")) / 100 for share in shares]

    assert said["sides"] == ["one", "two"]
    assert said["start"][0] == "step 1 of 5"
    np.testing.assert_allclose(shown(said["start"][1]), weights[0], atol=6e-4)
    assert said["start"][2] == 1  # one tab stop in each list
    assert said["third"][0] == "step 3 of 5"
    np.testing.assert_allclose(shown(said["third"][1]), weights[2], atol=6e-4)
    assert said["third"][2] == "dort"
    assert said["third"][3].startswith("“dort” looks at “")
    assert said["both"] == ["dort"]  # the sides keep step
    assert said["source"][0] == "."
    np.testing.assert_allclose(shown(said["source"][1]), weights[:, 3], atol=6e-4)
    most = int(weights[:, 3].argmax())
    assert said["source"][2].startswith(f"“.” is looked at by “{one.translations[0].best.tokens[most]}” (")
    assert said["back"] == ["step 1 of 5", "le"]
    assert said["hover"] == "step 2 of 5"


@in_browser
def test_steps_hypotheses_and_sentences_are_switched(tmp_path):
    script = """
    const rows = () => all('.side:first-child .candidates tbody tr');
    const candidates = () => rows().map(row => [row.className, ...[...row.cells].map(cell => cell.textContent)]);
    const texts = name => words(name).map(word => word.firstChild.textContent);
    say.first = [candidates(), document.querySelector('.candidates-title').textContent];
    click('on'); say.on = [at(), document.querySelector('.candidates-title').textContent];
    for (let i = 0; i < 9; i++) click('on');
    say.last = [at(), candidates(), document.getElementById('on').disabled];
    click('first'); say.start = at();
    click('play'); click('play'); say.played = at();
    all('.side:first-child input')[1].focus();
    all('.side:first-child input')[1].click();
    say.kept = document.activeElement === all('.side:first-child input')[1];
    const checked = all('.side:first-child input').map(input => input.checked);
    say.other = [texts('target'), checked, document.getElementById('against').textContent];
    click('after');
    say.after = [texts('source'), texts('target'), document.getElementById('sentence').value];
    click('after');
    say.nothing = [texts('target'), spoken(), document.getElementById('after').disabled];
    """
    one = side("one", 0)
    said = browse(tmp_path, as_page([one, side("two", 9)]), HELPERS + script)
    log = f"{one.translations[0].best.token_scores[0]:.2f}".replace("-", "−")
    rows, title = said["first"]
    assert title == "What could come first"
    assert [row[1] for row in rows] == ["autre", "✓ le", "rien"]
    assert [row[0] for row in rows] == ["", "chosen", ""]
    assert rows[1][4] == log
    assert said["on"] == ["step 2 of 5", "What could follow “le”"]
    assert said["last"][0] == "step 5 of 5"
    # The chosen token is listed, although it is not among the most probable ones.
    assert [row[1] for row in said["last"][1]] == ["autre", "✓ <eos>"]
    assert said["last"][2]
    assert (said["start"], said["played"]) == ("step 1 of 5", "step 2 of 5")
    assert said["kept"]  # the focus, where arrow keys go on
    assert said["other"][0] == ["un", "chat", "dort", "<eos>"]
    assert said["other"][1] == [False, True]
    assert said["other"][2].startswith("two: the same translation as the first; log p differ by at most ")
    assert said["after"][0] == ["a", "</script><b>x</b>", "{{", "y", "}}", "&", '"z"', "'", "<eos>"]
    assert said["after"][1][0] == "<i>龍</i>"
    assert said["after"][2] == "1"
    assert said["nothing"] == [[], "There is no translation.", True]


@in_browser
def test_a_model_without_attention_has_its_candidates(tmp_path):
    script = """
    words('source')[1].focus();
    say.all = [spoken(), all('.whole').every(whole => whole.hidden), all('.candidates tbody tr').length];
    """
    said = browse(tmp_path, as_page([side("one", 0, attends=False)]), HELPERS + script)
    assert said["all"] == ["This model has no attention.", True, 3]


PICKS = """
const pick = name => document.querySelector(`.side:first-child [data-pick=${name}]`);
const offered = name => pick(name).parentElement.hidden ? null : [...pick(name).options].map(option => option.text);
const choose = (name, value) => {
  pick(name).value = value;
  pick(name).dispatchEvent(new Event('change'));
};
const texts = name => words(name).map(word => word.firstChild.textContent);
const looked = () => [texts('source'), texts('target'), shares('source').map(share => parseFloat(share) / 100)];
"""


@in_browser
def test_a_kind_a_layer_and_a_head_are_picked_and_one_map_needs_no_controls(tmp_path):
    one, maps = transformer_side()
    best, source, read = one.translations[0].best, maps[0].columns, maps[2].columns
    script = """
    say.offered = ['kind', 'layer', 'head'].map(offered);
    say.start = looked();
    choose('layer', 2); say.last = [looked(), spoken()];
    choose('head', 1); click('on'); say.head = [at(), looked()];
    choose('kind', 'source'); say.source = [looked(), spoken(), document.querySelector('.candidates').hidden];
    say.layers = [offered('layer'), pick('layer').value, pick('head').value];
    for (let i = 0; i < 9; i++) click('on');
    say.end = at();
    choose('kind', 'target'); click('first'); say.target = [looked(), document.querySelector('.candidates').hidden];
    say.cells = document.querySelector('.map').tBodies[0].rows[1].cells[2].title;
    all('.side:first-child input')[1].click();
    say.other = [document.querySelector('.picks').hidden, texts('target')];
    click('after');
    say.after = document.querySelector('.picks').hidden;
    """
    said = browse(tmp_path, as_page([one]), HELPERS + PICKS + script)
    assert said["offered"] == [
        ["translation → source", "source → source", "translation → translation"],
        ["0", "1", "2"],
        ["mean of 2", "0", "1"],
    ]

    def check(found: list, rows: tuple[str, ...], columns: tuple[str, ...], weights: np.ndarray) -> None:
        assert found[:2] == [list(columns), list(rows)]
        np.testing.assert_allclose(found[2], weights, atol=6e-4)

    check(said["start"], best.tokens, source, maps[0].weights[1, :, 0].mean(axis=0))
    check(said["last"][0], best.tokens, source, maps[0].weights[2, :, 0].mean(axis=0))
    assert said["head"][0] == "step 2 of 5"
    check(said["head"][1], best.tokens, source, maps[0].weights[2, 1, 1])
    check(said["source"][0], source, source, maps[1].weights[1, 1, 1])
    assert said["source"][1].startswith("“cat” looks at “")
    assert said["source"][2]  # a source word predicts nothing
    assert said["layers"] == [["0", "1"], "1", "1"]  # the encoder has two layers
    assert said["end"] == "step 5 of 5"
    check(said["target"][0], best.tokens, read, maps[2].weights[2, 1, 0])
    assert not said["target"][1]
    assert said["cells"].startswith("chat ← le: ")
    assert said["other"] == [True, ["un", "chat", "dort", "<eos>"]]
    assert said["after"]


@in_browser
def test_a_large_map_is_a_picture_that_tells_the_weight_under_the_pointer(tmp_path):
    source, target = tuple(f"s{i}" for i in range(159)), "t " * 79
    large = hypothesis(target, " ".join(source), 0)
    weights = np.random.default_rng(0).dirichlet(np.full(160, 0.05), 80)
    weights[20, 50] = 0.25
    large = dataclasses.replace(large, weights=weights)
    small = Translation(source[:2], (hypothesis("t", "s0 s1", 0),), "s0 s1")
    shown = side_of("one", [Translation(source, (large,), " ".join(source)), small])
    script = """
    const canvas = document.querySelector('canvas'), box = canvas.getBoundingClientRect();
    const cell = () => document.querySelector('.cell').textContent;
    const hidden = () => ['.map', '.picture', '.cell'].map(name => document.querySelector(name).hidden);
    const marker = document.querySelector('.picture i').style, marked = () => [marker.top, marker.left].map(parseFloat);
    say.start = [hidden(), cell(), all('.map *').length, box.width <= innerWidth];
    say.alpha = [...canvas.getContext('2d').getImageData(0, 0, 160, 80).data].filter((_, i) => i % 4 === 3);
    const [clientX, clientY] = [box.left + box.width * 50.5 / 160, box.top + box.height * 20.5 / 80];
    canvas.dispatchEvent(new MouseEvent('mousemove', { clientX, clientY }));
    say.pointed = [at(), cell(), marked()];
    words('source')[40].dispatchEvent(new MouseEvent('mouseenter'));
    say.column = marked();
    click('after'); say.small = [hidden(), all('.map td').length];
    """
    said = browse(tmp_path, as_page([shown]), HELPERS + script)
    assert said["start"] == [[True, False, False], "Point at the picture to see its weights.", 0, True]
    np.testing.assert_allclose(np.reshape(said["alpha"], (80, 160)), 255 * weights, atol=1)
    assert said["pointed"] == ["step 21 of 80", "t ← s50: 25 %", [25, 0]]  # row 20 of 80, in per cent of the picture
    assert said["column"] == [0, 25]
    assert said["small"] == [[False, True, True], 7]


@in_browser
def test_it_fits_a_phone_and_nothing_moves_from_under_the_pointer(tmp_path):
    script = """
    document.documentElement.style.width = '360px';
    const box = element => element.getBoundingClientRect();
    say.width = 0; say.moved = 0;
    for (const sentence of [0, 1, 2]) {
      document.getElementById('sentence').value = sentence;
      document.getElementById('sentence').dispatchEvent(new Event('change'));
      for (const element of all('body *'))
        if (!element.closest('.scroll > *, option')) say.width = Math.max(say.width, box(element).right);
      for (const word of [...words('target'), ...words('source')]) {
        const before = box(word).top;
        word.dispatchEvent(new MouseEvent('mouseenter'));
        say.moved = Math.max(say.moved, Math.abs(box(word).top - before));
      }
    }
    """
    said = browse(tmp_path, as_page([transformer_side()[0], side("two", 9)]), HELPERS + script, width=500)
    assert 300 < said["width"] <= 360
    assert said["moved"] == 0


@in_browser
def test_sides_share_their_rows_and_one_alone_has_its_weights_to_the_right(tmp_path):
    script = """
    const box = name => document.querySelector(name).getBoundingClientRect();
    const tops = name => all(name).map(element => element.getBoundingClientRect().top);
    say.tops = ['ul.source', 'ul.target', '.candidates', '.map'].map(tops);
    say.map = [box('.map').left > box('.candidates').right, box('.map').top < box('ul.source').bottom];
    """
    both = browse(tmp_path, as_page([transformer_side()[0], side("two", 9)]), HELPERS + script)
    assert all(first == second > 0 for first, second in both["tops"])  # although one side alone can pick a layer
    assert both["map"] == [False, False]
    assert browse(tmp_path, as_page([side("one", 0)]), HELPERS + script)["map"] == [True, True]
    assert browse(tmp_path, as_page([side("one", 0)]), HELPERS + script, width=800)["map"] == [False, False]


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_in_light_and_dark(tmp_path, dark):
    script = """
    const context = document.createElement('canvas').getContext('2d');
    const channels = color => {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255);
    };
    const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const light = color => { const [r, g, b] = channels(color).map(linear); return .2126 * r + .7152 * g + .0722 * b; };
    const contrast = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
    const ground = getComputedStyle(document.body).backgroundColor;
    say.ground = light(ground);
    say.least = 99;
    const word = words('source')[0];
    for (let share = 0; share <= 100; share += 2) {
      word.style.setProperty('--share', share + '%'); word.classList.toggle('hot', share > 50);
      const style = getComputedStyle(word);
      say.least = Math.min(say.least, contrast(style.color, style.backgroundColor));
    }
    for (const element of all('.soft, .number, h3, .later'))
      say.least = Math.min(say.least, contrast(getComputedStyle(element).color, ground));
    """
    said = browse(tmp_path, as_page([side("one", 0)]), HELPERS + script, dark=dark)
    assert (said["ground"] < 0.1) == dark
    assert said["least"] >= 4.5  # WCAG 2, AA


@in_browser
@pytest.mark.parametrize("wide", [True, False])
def test_tables_are_narrow_a_full_bar_fills_its_track_and_hidden_columns_have_a_hint(tmp_path, wide):
    script = """
    const box = selector => document.querySelector(selector).getBoundingClientRect();
    say.bar = box('.candidates i').width / box('.candidates div').width;
    say.table = box('.candidates').width;
    say.score = document.querySelector('.hypothesis .number').textContent;
    const area = document.querySelector('.scroll');
    const state = () => [area.scrollWidth > area.clientWidth, area.classList.contains('more'),
                         !document.querySelector('.hint').hidden];
    say.start = state();
    area.scrollLeft = 1e4;
    area.dispatchEvent(new Event('scroll'));
    say.end = state();
    """
    words = tuple(f"word{i}" for i in range(30))
    spans, pieces = (range(1), range(1, 2)), ("mot", "<eos>")
    certain = Hypothesis((4, 2), ("mot",), -0.5, np.zeros(2), np.full((2, 31), 1 / 31), "mot", spans, pieces)
    one = side_of("one", [Translation(words, (certain,))])
    one = dataclasses.replace(one, explained=[[[[("mot", 0.0)], [("<eos>", 0.0)]]]])
    said = browse(tmp_path, as_page([one]), HELPERS + script, width=1280 if wide else 500)
    assert said["bar"] == 1
    assert said["table"] <= 640
    assert said["score"] == "score −0.500"
    assert said["start"] == [not wide] * 3
    assert said["end"] == [not wide, False, not wide]
