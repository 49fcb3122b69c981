"""Run the scripts, and check what they print."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent
FRA = EXAMPLES.parents[1] / "shared" / "data" / "fra.txt"


@pytest.fixture
def printed(request, capsys, own_checks):
    """What the script of this name prints."""
    runpy.run_path(str(EXAMPLES / f"{request.param}.py"), run_name="__main__")
    return capsys.readouterr().out


def of(script):
    return pytest.mark.parametrize("printed", [script], indirect=True, ids=[script])


@of("attention")
def test_attention_is_masked_and_its_gradient_is_the_attention(printed):
    _, weights, attended, gradient, same = (line.partition(": ")[2] for line in printed.splitlines())
    assert sum(map(float, weights.split())) == pytest.approx(1, abs=0.002)
    assert weights.endswith("0.000 0.000 0.000")
    assert attended == gradient
    assert same == "True"


@of("own_score")
def test_a_score_of_one_s_own_is_masked_differentiated_and_searched(printed):
    weights, gradient, found = printed.splitlines()
    *words, padding = weights.rpartition(": ")[2].split(maxsplit=3)
    assert sum(map(float, words)) == pytest.approx(1, abs=0.02)
    assert padding == "0.00 0.00 0.00"
    assert float(gradient.split()[-1]) != 0
    assert found.count("[") == 3


@pytest.mark.slow
@of("training_loop")
def test_the_training_loop_learns_to_write_numbers_backwards(printed):
    loss, *translations = printed.splitlines()
    assert float(re.search(r": (\S+) nats", loss)[1]) < 0.1
    right = [number[1:-1] == written[-2:0:-1] for number, written in (line.split(" → ") for line in translations)]
    assert len(right) == 5
    assert sum(right) >= 4


@pytest.mark.slow
@of("nnx_bridge")
def test_the_nnx_model_finds_the_largest_number_that_it_may_look_at(printed):
    error, answer = printed.splitlines()
    assert float(error.split()[-1]) < 0.02
    weights = [float(weight) for weight in answer.rpartition(": ")[2].split()]
    assert max(weights) == weights[2] > 0.9
    assert weights[4] == 0


@pytest.mark.slow
@of("port")
def test_the_port_differs_by_its_epsilon_and_agrees_without_it(printed):
    wrong, right = printed.split("\n\n")
    assert wrong.startswith("the port with Flax's epsilon DIFFERS")
    assert "cause: epsilon is 1e-06 in JAX" in wrong
    assert right.startswith("the port with PyTorch's agrees")


@pytest.mark.slow
def test_the_books_recipe_learns_in_pytorch(capsys):
    """The embedded corpus is no help to the book's sentences, but the loss falls."""
    train = runpy.run_path(str(EXAMPLES / "book_in_pytorch.py"))["main"]
    losses = []
    for epochs in (1, 3):
        train("embedded", epochs)
        losses.append(float(capsys.readouterr().out.splitlines()[1].split()[0]))
    assert losses[1] < 0.9 * losses[0]


@pytest.mark.slow
@pytest.mark.skipif(not FRA.exists(), reason=f"the English-French corpus is not at {FRA}")
def test_the_books_loss_and_translations_are_reached_in_pytorch(capsys):
    runpy.run_path(str(EXAMPLES / "book_in_pytorch.py"))["main"](str(FRA))
    mean, best, _, *translations = capsys.readouterr().out.splitlines()
    assert float(re.search(r": (\S+),", mean)[1]) <= 0.0235
    assert float(best.split()[0]) <= 0.0215
    assert translations[0] == "go . → va !"
    assert translations[1].removeprefix("i'm ok . → ") in ("ça va .", "je vais bien .")  # the corpus has both
    assert translations[2] == "i won ! → j'ai gagné !"
