"""One typed schema for a run's configuration, and the loader that reads it."""

from services.common.config.loader import dump_config, load_config
from services.common.config.schema import RunConfig

__all__ = ["RunConfig", "dump_config", "load_config"]
