import io

import pytest
from rich.console import Console

from train import progress as progress_bar
from train.runs.run_folder import RunFolder
from train.training import console
from train.training.report import Report

NUMBERS = dict.fromkeys(("loss", "loss_book", "loss_book_best", "tokens_per_second", "seconds"), 1.0)
SUMMARY = {"translations": [], "bleu": None, "alignment_error_rate": None, **NUMBERS}


def report(number: int, steps: int = 1) -> Report:
    return Report(number * steps, number, 1.5, 0.1, 2.5, 1000, 0.5)


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a terminal receives."""
    file = io.StringIO()
    monkeypatch.setattr(console, "CONSOLE", Console(file=file, force_terminal=True, color_system=None, width=120))
    monkeypatch.setattr(progress_bar, "REDRAW", 0.0)
    return file


def test_the_bar_moves_within_an_epoch_and_says_what_remains(screen):
    with console.Progress(num_steps=20, num_reports=2) as progress:
        for step in range(1, 6):
            progress.update(step, 1.2345, 64)
        task = progress.bar.bar.tasks[0]
        assert (task.completed, task.total) == (5, 20)
        progress.bar.bar.refresh()
    text = screen.getvalue()
    assert "5/20 steps" in text
    assert "loss 1.2345" in text
    assert "tokens/s" in text
    assert "left" in text


def test_the_bar_says_which_program_is_compiled(screen, monkeypatch):
    monkeypatch.setattr(progress_bar, "REDRAW", 1e9)
    with console.Progress(20, 2) as progress:
        progress.update(4, 1.0)
        progress.show_compiling(2, 6)
        assert progress.bar.bar.tasks[0].completed == 4
        progress.bar.bar.refresh()
    assert "compiling 2 of 6" in screen.getvalue()


def test_updates_between_two_drawings_are_not_drawn(screen, monkeypatch):
    monkeypatch.setattr(progress_bar, "REDRAW", 1e9)
    with console.Progress(10, 1) as progress:
        for step in range(1, 6):
            progress.update(step, 1.0)
        assert progress.bar.bar.tasks[0].completed == 1


def test_without_a_terminal_there_are_only_the_reports_lines(capsys):
    with console.Progress(num_steps=6, num_reports=2) as progress:
        for number in (1, 2):
            for step in (1, 2, 3):
                progress.update(step + 3 * (number - 1), 1.0, 64)
            progress.show_report(report(number, 3))
    assert capsys.readouterr().out.splitlines() == [
        f"step {3 * number}   epoch {number}   loss 1.5000 nats a token   validation 2.5000   2,000 tokens/s"
        for number in (1, 2)
    ]


def test_of_many_reports_about_twenty_have_a_line(capsys):
    with console.Progress(num_steps=500, num_reports=500) as progress:
        for number in range(1, 501):
            progress.show_report(report(number))
    assert len(capsys.readouterr().out.splitlines()) == 20


def test_the_books_loss_is_shown_only_if_asked_for(tmp_path, capsys):
    console.show_results(SUMMARY, RunFolder(tmp_path))
    assert "by the book" not in capsys.readouterr().out
    console.show_results(SUMMARY, RunFolder(tmp_path), book_loss=True)
    assert "by the book's measure 1.0000" in capsys.readouterr().out


def test_brackets_in_a_sentence_are_shown_as_they_are(tmp_path, capsys):
    row = {"source": "[/x] a", "translation": "[red]b[/red]", "references": []}
    console.show_results(SUMMARY | {"translations": [row]}, RunFolder(tmp_path))
    assert "[red]b[/red]" in capsys.readouterr().out
