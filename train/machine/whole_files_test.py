import resource

import pytest

from train.machine.whole_files import DamageError, check, read_json, require_space, sha256, write_json, write_whole


def test_bytes_that_do_not_fit_are_an_error_and_leave_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        require_space(tmp_path, 1_000_000)
        with pytest.raises(OSError, match="File too large"):
            require_space(tmp_path, 1_000_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_content_and_nothing_beside(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(beside):
        beside.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space") as error:
        write_whole(path, fail)
    assert error.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_and_changed_files_are_named_and_either_of_two_announced_contents_is_right(tmp_path):
    (tmp_path / "a").write_text("1")
    one = sha256(tmp_path / "a")
    (tmp_path / "a").write_text("2")
    check(tmp_path, {"a": [one, sha256(tmp_path / "a")]})
    with pytest.raises(DamageError, match="a is damaged"):
        check(tmp_path, {"a": one})
    with pytest.raises(DamageError, match="b is missing"):
        check(tmp_path, {"b": one})


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{", "\x00"])
def test_json_that_is_damaged_is_an_error_that_names_the_file(tmp_path, text):
    write_json(tmp_path / "x.json", {"a": 1})
    assert read_json(tmp_path / "x.json") == {"a": 1}
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DamageError, match=r"x\.json is damaged"):
        read_json(tmp_path / "x.json")
