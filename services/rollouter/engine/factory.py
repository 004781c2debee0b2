"""Builds the engine that the config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.errors import ConfigError

if TYPE_CHECKING:
    from services.common.config.learning import ModelSection
    from services.common.config.serving import EngineSection
    from services.rollouter.engine.port import Engine


def build_engine(engine: EngineSection, model: ModelSection) -> Engine:
    """Make an engine; `start` loads it.

    Imports are made here, so that a scripted replica never loads torch.

    Args:
        engine: the `[engine]` section.
        model: the `[model]` section, with the folder of a built model filled in as `path`.

    Raises:
        ConfigError: what the engine needs is not configured.
    """
    if engine.kind == "scripted":
        from services.rollouter.engine.script import load_script  # noqa: PLC0415
        from services.rollouter.engine.scripted import ScriptedEngine  # noqa: PLC0415

        if not engine.script:
            raise ConfigError("engine.kind is 'scripted' and engine.script is empty; name the TOML file to play")
        return ScriptedEngine(engine, load_script(engine.script))
    if not model.path:
        raise ConfigError("model.path is empty; name the folder or hub name of the model to serve")
    from services.rollouter.engine.transformers_engine import TransformersEngine  # noqa: PLC0415

    return TransformersEngine(engine, model)
