"""Each thing is told once when it begins and once when it is over."""

from services.launcher.news import News
from tests.factories import make_report, make_stats


def test_rollouters_that_come_and_go_are_told_of():
    news = News(own_rollouters=("rollouter-0",))
    own = make_report("rollouter-0-aa", age_seconds=99.0)
    assert news.since_last(make_stats(own, make_report("extra-bb"))) == ["rollouter extra-bb joined"]
    assert news.since_last(make_stats(own, make_report("extra-bb"))) == []
    (line,) = news.since_last(make_stats(own, make_report("extra-bb", age_seconds=20.0)))
    assert line == "rollouter extra-bb is silent for 20 s: it died or hangs; what it held is given to others"
    assert news.since_last(make_stats(own, make_report("extra-bb"))) == ["rollouter extra-bb is back"]
    assert news.since_last(make_stats(own, make_report("extra-bb", state="left"))) == ["rollouter extra-bb left"]
    assert news.since_last(make_stats(own)) == []


def test_a_trainer_that_stops_consuming_is_told_of_once_and_again_when_it_goes_on():
    news = News(own_rollouters=())
    stopped = make_stats(make_report("trainer-1", age_seconds=12.0), ready_groups=8, ask_age_seconds=12.0)
    (line,) = news.since_last(stopped)
    assert line.startswith("trainer-1 has not consumed for 12 s")
    assert news.since_last(stopped) == []
    assert news.since_last(make_stats(make_report("trainer-1"), ready_groups=8, ask_age_seconds=0.1)) == [
        "the trainer consumes again"
    ]
