"""Progress goes where it can be shown."""

from services.launcher.screen import LiveScreen, PlainScreen, make_screen


def test_without_a_terminal_lines_are_printed(capsys):
    with make_screen(quiet=False) as screen:
        screen.say("one")
        screen.step("two")
        screen.show("never")
    assert capsys.readouterr().out == "one\ntwo\n"
    assert not screen.wants_view


def test_quiet_prints_nothing(capsys):
    with make_screen(quiet=True) as screen:
        screen.say("one")
        screen.step("two")
    assert isinstance(screen, PlainScreen)
    assert capsys.readouterr().out == ""


def test_a_live_screen_keeps_lines_as_they_are(capsys):
    with LiveScreen() as screen:
        screen.show("the view")
        screen.say("[Step 1/2] one")
    assert "[Step 1/2] one" in capsys.readouterr().out
