import ast
from pathlib import Path

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from services.common.telemetry import names


def constants():
    body = ast.parse(Path(names.__file__).read_text(encoding="utf-8")).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            yield statement.target.id, statement.value.value, following


def test_every_name_has_a_meaning():
    for name, _, following in constants():
        documented = isinstance(following, ast.Expr) and isinstance(following.value.value, str)
        assert documented, f"{name} has no docstring"


def test_names_are_unique():
    values = [value for _, value, _ in constants()]
    assert len(values) == len(set(values))


def test_attributes_are_ours_or_of_the_conventions():
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    for name, value, _ in constants():
        if name.startswith(("SPAN_", "EVENT_", "SERVICE_")):
            continue
        assert value.startswith("headrace.") or value in known, f"{name} is neither ours nor a convention"
