"""Settings for all tests: examples are judged by what they find, not by how long a busy machine took for one."""

from hypothesis import settings

settings.register_profile("datakit", deadline=None)
settings.load_profile("datakit")
