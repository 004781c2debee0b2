"""Log files stay bounded and remember their end."""

from services.launcher.log_file import LogFile


def test_a_full_file_is_rotated_once(tmp_path):
    log = LogFile(tmp_path / "a.log", max_bytes=100)
    for number in range(50):
        log.write(f"line {number:04d}")
    log.close()
    assert (tmp_path / "a.log").stat().st_size <= 100
    assert (tmp_path / "a.log.1").stat().st_size <= 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_the_tail_holds_the_last_lines(tmp_path):
    log = LogFile(tmp_path / "a.log")
    for number in range(30):
        log.write(str(number))
    log.close()
    assert log.tail[0] == "10"
    assert log.tail[-1] == "29"


def test_an_existing_file_is_continued(tmp_path):
    for text in ("one", "two"):
        log = LogFile(tmp_path / "a.log")
        log.write(text)
        log.close()
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n"
