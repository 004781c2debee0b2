import subprocess
import sys

import pytest

from services.common.config.learning import ModelSection
from services.common.config.serving import EngineSection
from services.common.errors import ConfigError
from services.rollouter.engine.factory import build_engine


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.toml"
    path.write_text('default_replies = ["yes"]')
    return str(path)


def test_the_config_names_the_engine(script):
    scripted = build_engine(EngineSection(kind="scripted", script=script, max_slots=3), ModelSection(path="x"))
    decoding = build_engine(EngineSection(max_slots=5), ModelSection(path="x"))
    assert (type(scripted).__name__, scripted.max_slots) == ("ScriptedEngine", 3)
    assert (type(decoding).__name__, decoding.max_slots) == ("TransformersEngine", 5)


def test_what_an_engine_needs_must_be_configured():
    with pytest.raises(ConfigError, match=r"engine\.script is empty"):
        build_engine(EngineSection(kind="scripted"), ModelSection(path="x"))
    with pytest.raises(ConfigError, match=r"model\.path is empty"):
        build_engine(EngineSection(), ModelSection(build="tiny_qwen3"))


def test_a_scripted_replica_never_loads_torch(script):
    program = (
        "import sys\n"
        "from services.common.config.learning import ModelSection\n"
        "from services.common.config.serving import EngineSection\n"
        "from services.rollouter.engine.factory import build_engine\n"
        "build_engine(EngineSection(kind='scripted', script=sys.argv[1]), ModelSection(path='x'))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, script], check=True, timeout=50)
