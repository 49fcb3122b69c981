import io

import pytest
from rich.console import Console

from train import progress


@pytest.fixture
def wait(monkeypatch):
    """Let seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_without_a_terminal_there_is_a_line_each_minute_with_the_time_that_is_left(wait, capsys):
    with progress.Bar("translating", 1000, done=100) as bar:
        for done in (200, 250, 300, 400, 500):
            wait(25)
            bar.update(done, f"{done} [bytes]")
    assert capsys.readouterr() == ("", "translating: 300 [bytes]  about 0:05:50 left\n")


def test_what_was_done_before_a_stop_does_not_count_for_the_speed(wait, capsys):
    with progress.Bar("training", 1000) as bar:
        for done in (500, 510, 520):
            wait(30)
            bar.update(done, str(done))
        wait(60)
        bar.update(None, "compiling 2 of 6")
    assert capsys.readouterr().err.splitlines() == [
        "training: 510  about 0:24:30 left",
        "training: compiling 2 of 6  about 0:24:00 left",
    ]


def test_what_is_unknown_is_not_in_the_line(wait, capsys):
    with progress.Bar("file.zip") as bar:
        wait(60)
        bar.update(5, "5 MB")
    assert capsys.readouterr().err == "file.zip: 5 MB\n"


def test_at_a_terminal_no_line_remains(wait):
    file = io.StringIO()
    with progress.Bar("training", 10, console=Console(file=file, force_terminal=True, width=80)) as bar:
        wait(60)
        bar.update(5, "5 of 10")
        wait(60)
        bar.update(10, "10 of 10")
    assert "training:" not in file.getvalue()


def test_the_reading_of_items_is_shown_too(wait, capsys):
    for index in progress.show_progress(range(10_000), "reading", 10_000):
        wait(60 if index == 4095 else 0)
    assert capsys.readouterr().err == "reading: 4,096 of 10,000\n"
