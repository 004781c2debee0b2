"""A scorer for tests: longer answers are better, an answer is never refused."""


def length(completion, **_task):
    return float(len(completion))
